"""Runs the realistic suite, to measure its cost and to compare its verdicts between runs."""

from __future__ import annotations

import contextlib
import re
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bench import shuffled_tests
from harness.bench.accounting import run_accounted
from harness.bench.call_accounting import call_accounting
from harness.bench.inner_pytest import pytest_argv
from harness.bench.realistic import EXAMPLES, EXTERNAL_COMMANDS, write_suite
from harness.errors import HarnessError, RequirementError
from harness.provisioning.command import end, spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.bench.accounting import Usage

    _Run = Callable[[Path, bool], Usage]

_RUN_TIMEOUT_S = 1800.0
_JOBS = 2
_BUSY_LOOPS = 2
_ONE_EXAMPLE = """\
Describe 'one'
  It 'passes'
    When call true
    The status should be success
  End
End
"""
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class RealisticBench:
    """The cost of the realistic suite under one runner, as medians of several runs.

    `shuffled_cpu_s` is like `cpu_s`, but with a plugin that shuffles tests. `shuffled_cpu_s` is
    None for shellspec.
    """

    cpu_s: float
    external_cpu_s: float
    wall_s: float
    startup_cpu_s: float
    shuffled_cpu_s: float | None = None

    @property
    def overhead_ms(self) -> float:
        """Return the CPU time of one example in ms, without the CPU time of the commands that specs call."""
        return (self.cpu_s - self.external_cpu_s) * 1000 / EXAMPLES


@dataclass(frozen=True, kw_only=True)
class RepeatedRuns:
    """The tests' outcomes in several runs; `differing` has the tests whose outcome differs between runs."""

    runs: int
    examples: int
    differing: Mapping[str, Sequence[str]]
    never_passed: Sequence[str]

    @property
    def are_identical(self) -> bool:
        return not self.differing and not self.never_passed


def measure_realistic(rounds: int) -> tuple[RealisticBench, RealisticBench | None]:
    """Return the suite's figures under the harness, and under `shellspec` if PATH has `shellspec`.

    Raises RequirementError if a command that the suite runs is not installed.
    """
    check_commands()

    def figures(run: _Run, shuffled: _Run | None = None) -> RealisticBench:
        with _project() as folder:
            write_suite(folder)
            run(folder, False)  # this run fills the cache of bytecode
            # Alternate the two measurements, since the speed of a host changes within minutes.
            pairs = [(run(folder, False), external_cpu_s(folder)) for _ in range(rounds)]
            others = [shuffled(folder, False) for _ in range(rounds)] if shuffled else []
        with _project() as folder:
            (folder / "one_spec.sh").write_text(_ONE_EXAMPLE)
            starts = [run(folder, True) for _ in range(rounds)]
        return RealisticBench(
            cpu_s=statistics.median(usage.cpu_s for usage, _ in pairs),
            external_cpu_s=statistics.median(external for _, external in pairs),
            wall_s=statistics.median(usage.wall_s for usage, _ in pairs),
            startup_cpu_s=statistics.median(usage.cpu_s for usage in starts),
            shuffled_cpu_s=statistics.median(usage.cpu_s for usage in others) if others else None,
        )

    return (
        figures(_run_pytest, _run_shuffled),
        figures(_run_shellspec) if shutil.which("shellspec") else None,
    )


def repeat_under_load(runs: int) -> RepeatedRuns:
    """Run the suite `runs` times with two workers, while two other processes run busy loops."""
    check_commands()
    argv = pytest_argv("--shell-time=virtual", "-n", str(_JOBS), "-rA", "--show-capture=no")
    with _project() as folder, _busy_loops():
        write_suite(folder)
        reports = [
            run_accounted(argv, cwd=folder, timeout_s=_RUN_TIMEOUT_S, may_fail=True).stdout
            for _ in range(runs)
        ]
    repeated = compare_reports(reports)
    if repeated.examples != EXAMPLES:
        raise HarnessError(
            f"The realistic suite has {EXAMPLES} examples, but pytest reported "
            f"{repeated.examples}:\n{reports[-1][-2000:]}"
        )
    return repeated


def compare_reports(reports: Sequence[str]) -> RepeatedRuns:
    """Compare the output of pytest with `-rA` in several runs."""
    outcomes: dict[str, list[str]] = {}
    for report in reports:
        for outcome, name in _OUTCOME.findall(report):
            outcomes.setdefault(name, []).append(outcome)
    return RepeatedRuns(
        runs=len(reports),
        examples=len(outcomes),
        differing={
            name: each
            for name, each in outcomes.items()
            if len(set(each)) > 1 or len(each) != len(reports)
        },
        never_passed=[name for name, each in outcomes.items() if "PASSED" not in each],
    )


def check_commands() -> None:
    """Raise RequirementError if a command that the suite runs is not installed."""
    for name, package in EXTERNAL_COMMANDS.items():
        if shutil.which(name) is None:
            raise RequirementError(
                f"The realistic suite runs '{name}', which is not on PATH; install the package "
                f"'{package}' (apt-get install {package})."
            )


@contextlib.contextmanager
def _project() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="harness-bench.") as name:
        folder = Path(name)
        (folder / ".shellspec").touch()
        yield folder


def external_cpu_s(folder: Path) -> float:
    """Run the suite in `folder`, and return the CPU seconds of the commands that the specs call.

    A wrapper of `wait4` records the CPU time of each call, and may slow the run down. The run has
    no sandbox, since files written in a sandbox are lost when the sandbox ends.
    """
    with call_accounting(EXTERNAL_COMMANDS) as accounting:
        argv = pytest_argv("--shell-time=virtual", "--shell-sandbox=off", "-n", str(_JOBS))
        run_accounted(argv, cwd=folder, timeout_s=_RUN_TIMEOUT_S, env=accounting.environment)
        return sum(call.cpu_s for call in accounting.calls())


def _run_pytest(folder: Path, is_start: bool, *options: str) -> Usage:
    """Run the specs in `folder`, without workers and without cached bytecode if `is_start` is true.

    The bytecode cache is in `folder`, so that no run depends on the caller's environment variables.
    For example, many containers set PYTHONDONTWRITEBYTECODE, and Python then compiles modules again
    in each process.
    """
    return run_accounted(
        pytest_argv("--shell-time=virtual", "-n", "0" if is_start else str(_JOBS), *options),
        cwd=folder,
        timeout_s=_RUN_TIMEOUT_S,
        env={
            "PYTHONDONTWRITEBYTECODE": "1" if is_start else "",
            "PYTHONPYCACHEPREFIX": str(folder / ".bytecode"),
        },
    )


def _run_shuffled(folder: Path, is_start: bool) -> Usage:
    return _run_pytest(folder, is_start, "-p", shuffled_tests.__name__)


def _run_shellspec(folder: Path, is_start: bool) -> Usage:
    jobs = [] if is_start else ["--jobs", str(_JOBS)]
    argv = ["shellspec", "--shell", "bash", "--pattern", "*_spec.sh", *jobs]
    return run_accounted(
        [*argv, "." if is_start else "spec"], cwd=folder, timeout_s=_RUN_TIMEOUT_S
    )


@contextlib.contextmanager
def _busy_loops() -> Iterator[None]:
    with contextlib.ExitStack() as started:
        for _ in range(_BUSY_LOOPS):
            started.callback(end, spawn([sys.executable, "-I", "-S", "-c", "while True: pass"]))
        yield
