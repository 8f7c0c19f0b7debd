"""Run pytest for several argument lists, one after another, as a program of its own.

Reads a JSON list of argument lists, answers with a list of `[exit code, output]`. One process for
all of them: starting pytest costs more than collecting.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

import pytest


def main() -> None:
    answers: list[tuple[int, str]] = []
    for arguments in json.load(sys.stdin):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = pytest.main(arguments)
        answers.append((int(code), output.getvalue()))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
