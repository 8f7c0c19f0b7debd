"""Runs mutmut over one package, with the tests of this package only."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.command import LocalRunner, spawn

from .mutant_runner import copy_sources

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.provisioning.command import ChildProcess, Runner

    from .packages import Package

_RESULT = re.compile(r"^\s*(?P<name>\S+__mutmut_\d+): (?P<status>.+)$", re.MULTILINE)
#: Statuses of killed mutants; a suite that never ends counts as a failed suite.
_KILLED = frozenset({"killed", "timeout", "segfault", "suspicious"})
_UNTRIED = "not checked"


class ToolError(HarnessError):
    """mutmut failed or gave no results."""


def run_tool(
    repository: Path,
    children: int,
    package: Package,
    *,
    start: Callable[..., ChildProcess] = spawn,
    runner: Runner | None = None,
) -> int:
    """Run mutmut in a copy of the sources; return 0 if enough mutants are killed.

    Otherwise the copy is kept, and its path is printed.
    """
    top = Path(tempfile.mkdtemp(prefix="mutants-"))
    code = None
    try:
        copy_sources(repository, top)
        package.write_configuration(top)
        _try_mutants(top, children, start)
        code = judge(top, package, runner or LocalRunner())
    finally:
        if code == 0:
            shutil.rmtree(top)
        else:
            _say(f"The mutants are in '{top}'; run 'python -m mutmut show NAME' there to see one.")
    return code


def _try_mutants(top: Path, children: int, start: Callable[..., ChildProcess]) -> None:
    """Run mutmut, which shows its own progress."""
    argv = (sys.executable, "-m", "mutmut", "run", "--max-children", str(children))
    # Mutants that never end may leave half a million temporary files, which are removed with this
    # folder.
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as scratch:
        process = start(argv, stdout=None, stderr=None, cwd=top, env={"TMPDIR": scratch})
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                # Kill the group, because one of mutmut's children may run a mutant that never ends.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code != 0:
        raise ToolError(f"mutmut ended with {code}.")


def judge(top: Path, package: Package, runner: Runner) -> int:
    """Print which mutants in `top` survived; return 0 if enough were killed."""
    argv = ("env", "--chdir", str(top), sys.executable, "-m", "mutmut", "results", "--all", "true")
    results = runner.run(argv, timeout_s=600).check("Reading the results of mutmut").stdout
    statuses = dict(_RESULT.findall(results))
    if not statuses:
        raise ToolError(f"There are no results of mutmut in '{top}'.")
    count = Counter(statuses.values())
    if count[_UNTRIED]:
        raise ToolError(
            f"mutmut was stopped: {count[_UNTRIED]} of {len(statuses)} mutants are untried."
        )
    for name, status in sorted(statuses.items()):
        if status not in _KILLED:
            _say(f"{status}: {name}")
    killed = sum(count[status] for status in _KILLED)
    share = killed / len(statuses)
    _say(f"{killed} of {len(statuses)} killed ({share:.1%})")
    return 0 if share >= package.least else 1


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201
