"""Runs pytest repeatedly, each time in a fork of a process that has already imported pytest.

Reads requests, each a line `{"arguments": [...], "cwd": "..."}`, and answers each with a line
`{"exit_code": 0, "output": "..."}`. This saves time: starting pytest takes longer than most runs
of specs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import NoReturn

import pytest
import xdist.plugin  # noqa: F401 - so that no fork has to

import harness.plugin.specs.hooks  # noqa: F401


def _become(arguments: list[str], cwd: str, output: int) -> NoReturn:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, target)
    os.chdir(cwd)
    code = int(pytest.main(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _answer(arguments: list[str], cwd: str) -> dict[str, object]:
    output = os.memfd_create("output")
    child = os.fork()
    if child == 0:
        _become(arguments, cwd, output)
    _, status = os.waitpid(child, 0)
    text = os.pread(output, os.fstat(output).st_size, 0).decode(errors="replace")
    os.close(output)
    return {"exit_code": os.waitstatus_to_exitcode(status), "output": text}


def _reset_signals() -> None:
    """Restore Python's signals: a background job ignores SIGINT, and nohup ignores SIGHUP."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _forget_ci() -> None:
    """Remove variables of CI systems, under which pytest's summary has longer lines."""
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"):
        os.environ.pop(name, None)


def main() -> None:
    _reset_signals()
    _forget_ci()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_answer(**request)), flush=True)  # noqa: T201 - the protocol


if __name__ == "__main__":
    main()
