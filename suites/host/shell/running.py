"""Runs pytest on a folder of specs, as a user does."""

from __future__ import annotations

import contextlib
import json
import re
import select
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.command import PIPE, CommandResult, LocalRunner, end, spawn
from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.shells import BASH, SpecShell
from harness.shell.spec.parameter_rows import ShellRowEvaluator
from suites.host.shell import warm_pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioning.command import ChildProcess

REPOSITORY = Path(__file__).parents[3]
#: A spec with examples of every ending.
GREETING = """\
greet() { echo "hello $1"; }
Describe 'greeting' slow
  It 'greets'
    When call greet world
    The output should equal 'hello world'
  End
  It 'fails'
    When call greet world
    The output should equal 'hello moon'
  End
  Describe 'of many'
    Parameters
      ann
      bob
    End
    It "greets $1"
      When call greet "$1"
      The output should end with "$1"
    End
  End
  xIt 'is skipped'
    false
  End
  Todo 'is to be written'
End
"""
_OUTCOME = re.compile(r"^(\S.*?) (PASSED|FAILED|SKIPPED|XFAIL|ERROR)\b", re.MULTILINE)
_RUN_S = 60.0


class WarmPytest:
    """A process that has imported pytest, and forks for each run."""

    def __init__(self, process: ChildProcess) -> None:
        self._process = process

    def run(self, *arguments: str, cwd: Path) -> CommandResult:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        started = time.monotonic()
        request = json.dumps({"arguments": arguments, "cwd": str(cwd)})
        self._process.stdin.write(f"{request}\n".encode())
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], _RUN_S)[0]:
            raise HarnessError(f"pytest {arguments} did not end within {_RUN_S:g} s.")
        answer = json.loads(self._process.stdout.readline())
        return CommandResult(
            argv=("pytest", *arguments),
            exit_code=answer["exit_code"],
            stdout=answer["output"],
            stderr="",
            duration_s=time.monotonic() - started,
        )


@contextlib.contextmanager
def warm_pytest_process() -> Iterator[WarmPytest]:
    """Start such a process; it ends, with a run that is under way, at the end."""
    process = spawn(
        [sys.executable, str(warm_pytest.__file__)],
        stdin=PIPE,
        stdout=PIPE,
        stderr=None,
        env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    try:
        yield WarmPytest(process)
    finally:
        end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass(frozen=True)
class SpecProject:
    """A folder in which a test writes specs and runs them."""

    root: Path
    pytest: WarmPytest

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *arguments: str) -> CommandResult:
        plugins = ["-p", "xdist.plugin", "-p", "harness.plugin.specs.hooks"]
        plugins += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
        root = str(self.root)
        return self.pytest.run(
            *plugins, "-v", *arguments, f"--rootdir={root}", root, cwd=REPOSITORY
        )


def row_evaluator(source: str, shell: SpecShell = BASH) -> ShellRowEvaluator:
    """Return what runs `Parameters:dynamic` of a spec, in the throw-away root."""
    throwaway = Sandbox(kind=SandboxKind.THROWAWAY)
    return ShellRowEvaluator(
        LocalRunner(), lambda: throwaway, source=source, cwd=Path("/"), env={}, shell=shell
    )


def outcomes(result: CommandResult) -> dict[str, str]:
    """Return what became of each test, by the last part of its id."""
    return {
        found[1].split("::")[-1]: found[2].lower() for found in _OUTCOME.finditer(result.stdout)
    }
