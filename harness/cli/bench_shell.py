"""Measures what an example of a `*_spec.sh` costs: `harness bench shell`."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from harness.cli.options import Commands

_EXAMPLES = 200
_FILES = 25
_RUN_TIMEOUT_S = 600.0
_LIBRARY_LINES = 3000


#: What is measured, in the order in which it is shown.
FIGURES: Mapping[str, str] = {
    "function_mocks_ms": "one of 200 examples with three function mocks, start-up left out",
    "command_mocks_ms": "the same with three Mock blocks",
    "sourced_script_ms": "what a sourced script of 3,000 lines adds to an example",
    "workers_speedup": "5,000 examples on two workers against none, start-up included",
    "sleeping_examples_s": "1,000 examples that each sleep 5, in virtual time, start-up included",
    "load_before": "the host's load average of a minute, before",
    "load_after": "and after: figures of a busy host say little",
}


@dataclass(frozen=True, kw_only=True)
class ShellBench:
    """The figures; `workers_speedup` is 0 where it was left out."""

    function_mocks_ms: float
    command_mocks_ms: float
    sourced_script_ms: float
    workers_speedup: float
    sleeping_examples_s: float
    load_before: float
    load_after: float


def add_parser(subjects: Commands) -> None:
    """Add `shell` to the subcommands of `harness bench`."""
    parser = subjects.add_parser("shell", help="what an example of a *_spec.sh costs")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=5, help="runs to take the median of")
    parser.add_argument("--quick", action="store_true", help="leave out the 5,000 examples")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    bench = measure(rounds=arguments.rounds, quick=arguments.quick)
    if arguments.json:
        rounded = {name: round(value, 3) for name, value in asdict(bench).items()}
        print(json.dumps(rounded, indent=2))
        return 0
    for name, value in asdict(bench).items():
        print(f"{name:24}{value:10.3f}  {FIGURES[name]}")
    return 0


def measure(*, rounds: int, quick: bool) -> ShellBench:
    """Measure with generated specs; each figure is the median of `rounds` runs."""
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="harness-bench.") as name:
        folder = Path(name)
        (folder / ".shellspec").touch()
        function_ms = _cost_ms(folder, _function_mocks, rounds)
        command_ms = _cost_ms(folder, _command_mocks, rounds)
        library = folder / "library.sh"
        library.write_text(_library())
        include = f"  Include {library}\n"
        sourced_ms = _cost_ms(folder, _function_mocks, rounds, include)
        return ShellBench(
            function_mocks_ms=function_ms,
            command_mocks_ms=command_ms,
            sourced_script_ms=sourced_ms - function_ms,
            workers_speedup=0.0 if quick else _speedup(folder),
            sleeping_examples_s=_sleeping_s(folder),
            load_before=load_before,
            load_after=os.getloadavg()[0],
        )


def _cost_ms(
    folder: Path, example: Callable[[int], str], rounds: int, preamble: str = ""
) -> float:
    """Return the cost of one example: the time of many less that of one, by their number."""
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
    """Return the seconds that pytest takes for these specs, which must pass."""
    place = folder / "specs"
    place.mkdir(exist_ok=True)
    for old in place.iterdir():
        old.unlink()
    for name, text in specs.items():
        (place / f"{name}_spec.sh").write_text(text)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options,
            f"--rootdir={folder}", str(place)]  # fmt: skip
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


def _library() -> str:
    lines_each = 10
    return "".join(
        f"library_{number}() {{\n"
        + "".join(f'  local v{line}="$1"\n' for line in range(lines_each - 2))
        + "}\n"
        for number in range(_LIBRARY_LINES // lines_each)
    )
