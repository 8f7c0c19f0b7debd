"""Measures the CPU time and the wall time of examples in `*_spec.sh` files."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bench.inner_pytest import pytest_argv
from harness.bench.realistic import render_library
from harness.bench.realistic_runs import measure_realistic
from harness.bench.shell_fixture import measure_fixture
from harness.errors import HarnessError
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.bench.realistic_runs import RealisticBench

_EXAMPLES = 200
_FILES = 25
_RUN_TIMEOUT_S = 600.0
_LIBRARY_LINES = 3000
SHELLSPEC_PREFIX = "shellspec_"


#: The measures, in the order in which they are shown.
FIGURES: Mapping[str, str] = {
    "realistic_cpu_s": "CPU time of 900 examples in 30 files with real commands, two workers, bytecode cached",
    "realistic_external_cpu_s": "the part of realistic_cpu_s that the specs' own commands used, by wait4's accounting",
    "realistic_overhead_ms": "realistic_cpu_s minus realistic_external_cpu_s, for one example",
    "realistic_wall_s": "wall time of the run of realistic_cpu_s",
    "realistic_shuffled_cpu_s": "realistic_cpu_s with a plugin of pytest that shuffles all tests",
    "startup_cpu_s": "CPU time of one file with one example, without a bytecode cache",
    "function_mocks_ms": "the time of one of 200 examples with three function mocks, without start-up",
    "command_mocks_ms": "the time of one of 200 examples with three Mock blocks, without start-up",
    "sourced_script_ms": "the time that sourcing a script of 3,000 lines adds to an example",
    "workers_speedup": "5,000 examples with start-up: the time without workers, divided by the time with two workers",
    "sleeping_examples_s": "the time of 1,000 examples that each sleep 5 s, in virtual time, with start-up",
    "fixture_case_ms": "the time of a test with the shell fixture that sources 6,000 lines and writes three files",
    "timeout_mock_ms": "the time of a call of a mock through `timeout`, in a test with the shell fixture",
    "load_before": "the host's load average over a minute, before the measurement",
    "load_after": "the load average after the measurement; the figures of a busy host mean little",
}


@dataclass(frozen=True, kw_only=True)
class ShellBench:
    """The results of the benchmark; `workers_speedup` is 0 if the speedup was not measured.

    `shellspec` contains the figures of the realistic suite under shellspec, or is None if shellspec
    is not on PATH.
    """

    realistic: RealisticBench
    shellspec: RealisticBench | None
    function_mocks_ms: float
    command_mocks_ms: float
    sourced_script_ms: float
    workers_speedup: float
    sleeping_examples_s: float
    fixture_case_ms: float
    timeout_mock_ms: float
    load_before: float
    load_after: float

    def figures(self) -> Mapping[str, float]:
        """Return the figures by their names in `FIGURES`; the names of shellspec's figures have a prefix."""
        own = {name: getattr(self, name) for name in FIGURES if hasattr(self, name)}
        return {**shell_figures(self.realistic, self.shellspec), **own}


def shell_figures(own: RealisticBench, shellspec: RealisticBench | None) -> Mapping[str, float]:
    """Return the figures of the realistic suite by name; the names of shellspec's figures have a prefix."""
    figures = _realistic_figures(own)
    if shellspec is None:
        return figures
    others = _realistic_figures(shellspec)
    return {**figures, **{SHELLSPEC_PREFIX + name: value for name, value in others.items()}}


def _realistic_figures(bench: RealisticBench) -> Mapping[str, float]:
    figures = {
        "realistic_cpu_s": bench.cpu_s,
        "realistic_external_cpu_s": bench.external_cpu_s,
        "realistic_overhead_ms": bench.overhead_ms,
        "realistic_wall_s": bench.wall_s,
        "startup_cpu_s": bench.startup_cpu_s,
    }
    if bench.shuffled_cpu_s is not None:
        figures["realistic_shuffled_cpu_s"] = bench.shuffled_cpu_s
    return figures


def measure_shell(*, rounds: int, quick: bool) -> ShellBench:
    """Measure the realistic suite and generated specs; most figures are medians of `rounds` runs."""
    load_before = os.getloadavg()[0]
    realistic, shellspec = measure_realistic(rounds)
    with tempfile.TemporaryDirectory(prefix="harness-bench.") as name:
        folder = Path(name)
        (folder / ".shellspec").touch()
        function_ms = _cost_ms(folder, _function_mocks, rounds)
        command_ms = _cost_ms(folder, _command_mocks, rounds)
        library = folder / "library.sh"
        library.write_text(render_library(_LIBRARY_LINES))
        include = f"  Include {library}\n"
        sourced_ms = _cost_ms(folder, _function_mocks, rounds, include)
        fixture = measure_fixture(rounds=rounds)
        return ShellBench(
            realistic=realistic,
            shellspec=shellspec,
            function_mocks_ms=function_ms,
            command_mocks_ms=command_ms,
            sourced_script_ms=sourced_ms - function_ms,
            workers_speedup=0.0 if quick else _speedup(folder),
            sleeping_examples_s=_sleeping_s(folder),
            fixture_case_ms=fixture.fixture_case_ms,
            timeout_mock_ms=fixture.timeout_mock_ms,
            load_before=load_before,
            load_after=os.getloadavg()[0],
        )


def _cost_ms(
    folder: Path, example: Callable[[int], str], rounds: int, preamble: str = ""
) -> float:
    """Return the milliseconds that each additional example adds to the run time of a spec."""
    costs = []
    for _ in range(rounds):
        one = _time(folder, {"one": _spec(1, example, preamble)}, "-n", "0")
        many = _time(folder, {"many": _spec(_EXAMPLES, example, preamble)}, "-n", "0")
        costs.append((many - one) * 1000 / (_EXAMPLES - 1))
    return statistics.median(costs)


def _speedup(folder: Path) -> float:
    specs = {f"file{n}": _spec(_EXAMPLES, _function_mocks, "") for n in range(_FILES)}
    alone = _time(folder, specs, "-n", "0")
    return alone / _time(folder, specs, "-n", "2")


def _sleeping_s(folder: Path) -> float:
    def example(number: int) -> str:
        return (
            f"  It 'sleeps {number}'\n    When call sleep 5\n"
            "    The status should be success\n  End\n"
        )

    return _time(folder, {"sleepers": _spec(1000, example, "")}, "--shell-time=virtual")


def _time(folder: Path, specs: dict[str, str], *options: str) -> float:
    """Return the seconds that pytest takes for `specs`; raise HarnessError if a spec fails."""
    place = folder / "specs"
    place.mkdir(exist_ok=True)
    for old in place.iterdir():
        old.unlink()
    for name, text in specs.items():
        (place / f"{name}_spec.sh").write_text(text)
    argv = ["env", "-C", str(folder), *pytest_argv(*options, "specs")]
    started = time.perf_counter()
    result = LocalRunner().run(argv, timeout_s=_RUN_TIMEOUT_S)
    taken = time.perf_counter() - started
    if not result.ok:
        raise HarnessError(f"The generated specs did not pass.\n{result.render()}")
    return taken


def _spec(count: int, example: Callable[[int], str], preamble: str) -> str:
    body = "".join(example(number) for number in range(count))
    return f"Describe 'generated'\n{preamble}{body}End\n"


def _function_mocks(number: int) -> str:
    return f"""\
  provision{number}() {{ fetch "$1" && unpack "$1" && verify "$1"; echo "done $1"; }}
  It 'example {number}'
    fetch() {{ echo "fetched $1"; }}
    unpack() {{ echo "unpacked $1"; }}
    verify() {{ return 0; }}
    When call provision{number} driver
    The output should include 'unpacked driver'
    The status should be success
  End
"""


def _command_mocks(number: int) -> str:
    return f"""\
  provision{number}() {{ fetch "$1" && unpack "$1" && verify "$1"; echo "done $1"; }}
  It 'example {number}'
    Mock fetch
      echo "fetched $1"
    End
    Mock unpack
      echo "unpacked $1"
    End
    Mock verify
      exit 0
    End
    When call provision{number} driver
    The output should include 'unpacked driver'
    The status should be success
  End
"""
