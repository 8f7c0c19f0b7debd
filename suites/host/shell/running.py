"""Runs pytest on a folder of specs, as a user does."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import select
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.provisioning.command import PIPE, CommandResult, LocalRunner, end, spawn
from harness.shell.process import ShellCommandRunner
from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.shells import BASH, SpecShell
from harness.shell.spec.parameter_rows import ShellRowEvaluator
from suites.host.shell import warm_pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.provisioning.command import ChildProcess

REPOSITORY = Path(__file__).parents[3]
#: A spec whose examples pass, fail, or are skipped or pending.
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
_PROCESS_S = 180.0
_NOBODY = 65534
_PATH = "/usr/local/bin:/usr/bin:/bin"


class WarmPytest:
    """A process that has imported pytest, and forks for each run."""

    def __init__(self) -> None:
        self._process: ChildProcess | None = None

    def _started(self) -> ChildProcess:
        if self._process is None:
            self._process = spawn(
                [sys.executable, str(warm_pytest.__file__)],
                stdin=PIPE,
                stdout=PIPE,
                stderr=None,
                env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            )
        return self._process

    def end(self) -> None:
        """End the process and its current run; the next run starts another process."""
        process, self._process = self._process, None
        if process is None:
            return
        end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def run(self, *arguments: str, cwd: Path) -> CommandResult:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        started = time.monotonic()
        request = json.dumps({"arguments": arguments, "cwd": str(cwd)})
        process.stdin.write(f"{request}\n".encode())
        process.stdin.flush()
        if not select.select([process.stdout], [], [], _RUN_S)[0]:
            self.end()  # Without this, the next run would read the answer of this run.
            raise HarnessError(f"pytest {arguments} did not end within {_RUN_S:g} s.")
        answer = json.loads(process.stdout.readline())
        return CommandResult(
            argv=("pytest", *arguments),
            exit_code=answer["exit_code"],
            stdout=answer["output"],
            stderr="",
            duration_s=time.monotonic() - started,
        )


@contextlib.contextmanager
def warm_pytest_process() -> Iterator[WarmPytest]:
    """Yield a `WarmPytest`; end its process when the context ends."""
    warm = WarmPytest()
    try:
        yield warm
    finally:
        warm.end()


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


@dataclass(frozen=True, kw_only=True)
class PytestRun:
    """A folder in which pytest runs in a separate process; `start` may change the user."""

    root: Path
    start: tuple[str, ...] = (sys.executable,)
    env: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def this_user(parent: str | None = None) -> Iterator[PytestRun]:
    """Yield an empty folder in which this user runs pytest."""
    with tempfile.TemporaryDirectory(prefix="harness-run.", dir=parent) as folder:
        yield PytestRun(root=Path(folder).resolve())


@contextlib.contextmanager
def ordinary_user() -> Iterator[PytestRun]:
    """Yield an empty folder in which an ordinary user runs pytest.

    If this process runs as root, pytest runs as another user. Skips the test if that user can't run
    pytest with this project.
    """
    with this_user() as run:
        if os.geteuid() != 0:
            yield run
            return
        os.chown(run.root, _NOBODY, _NOBODY)
        found = importlib.util.find_spec("pytest")
        assert found is not None
        assert found.origin is not None
        packages = Path(found.origin).parents[1]
        become = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")
        python = f"/usr/bin/python3.{sys.version_info.minor}"
        user = PytestRun(
            root=run.root,
            start=(*become, python),
            env={"PYTHONPATH": f"{packages}:{REPOSITORY}", "HOME": str(run.root), "PATH": _PATH},
        )
        tried = LocalRunner().run(
            [*user.start, "-c", "import pytest, harness"], timeout_s=60, env=dict(user.env)
        )
        if not tried.ok:
            pytest.skip(f"An ordinary user can't run pytest here: {tried.stderr or python}")
        yield user


def run_pytest(run: PytestRun, *arguments: str) -> CommandResult:
    """Run pytest in the folder."""
    argv = [*run.start, "-m", "pytest", "-v", "-n0", "-p", "no:cacheprovider", "-p", "no:randomly"]
    argv += ["-p", "no:hypothesispytest"]  # The plugin imports many modules at the end of a run.
    env = {**run.env, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": f"--rootdir={run.root}"}
    config = run.root / "pytest.ini"
    if not config.exists():
        config.write_text("[pytest]\n")
    return LocalRunner().run(
        ["env", "-C", str(run.root), *argv, *arguments], timeout_s=_PROCESS_S, env=env
    )


def row_evaluator(source: str, shell: SpecShell = BASH) -> ShellRowEvaluator:
    """Return the evaluator that runs a spec's `Parameters:dynamic` in the throw-away root."""
    throwaway = Sandbox(kind=SandboxKind.THROWAWAY)
    return ShellRowEvaluator(
        ShellCommandRunner(), lambda: throwaway, source=source, cwd=Path("/"), env={}, shell=shell
    )


def outcomes(result: CommandResult) -> dict[str, str]:
    """Return the outcome of each test, by the last part of the test's id."""
    return {
        found[1].split("::")[-1]: found[2].lower() for found in _OUTCOME.finditer(result.stdout)
    }
