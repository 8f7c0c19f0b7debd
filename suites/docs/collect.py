"""Runs pytest for several argument lists, one after another, in one process.

Reads a JSON list of argument lists from stdin; writes a list of `[exit code, output]`. A process for
each list would be slower, since pytest takes longer to start than to collect.
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
