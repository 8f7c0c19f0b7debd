"""Measures the time that a test with the `shell` fixture takes."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bench.realistic import render_library
from harness.shell.sandbox import choose_sandbox
from harness.shell.warm_shell.pool import WarmShellPool
from harness.shell.warm_shell.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARY_LINES = 6000
_CASES = 15
_MOCK_CALLS = 20
_TIMEOUT_S = 60.0
_WRITING = "mkdir -p /etc/bench && for name in a b c; do echo $name >/etc/bench/$name; done"


@dataclass(frozen=True, kw_only=True)
class FixtureBench:
    """The costs of a test with the `shell` fixture, in milliseconds."""

    fixture_case_ms: float
    timeout_mock_ms: float


def measure_fixture(*, rounds: int) -> FixtureBench:
    """Measure both costs, each as the median of `rounds * _CASES` repetitions."""
    with tempfile.TemporaryDirectory(prefix="harness-bench.") as name:
        folder = Path(name)
        library = folder / "library.sh"
        library.write_text(render_library(_LIBRARY_LINES))
        pool = WarmShellPool(cwd=folder, scratch=folder, sandbox=choose_sandbox("auto"))
        try:
            return FixtureBench(
                fixture_case_ms=_case_ms(pool, library, rounds * _CASES),
                timeout_mock_ms=_timeout_mock_ms(pool, rounds * _CASES),
            )
        finally:
            pool.close()


def _case_ms(pool: WarmShellPool, library: Path, count: int) -> float:
    """Return the ms that a test takes to get a shell, source `library`, write files and reset the shell."""

    def case() -> None:
        shell = Shell(pool, virtual=True, timeout_s=_TIMEOUT_S)
        shell.source(library)
        shell.evaluate(_WRITING).check()
        shell.finish()

    case()  # sources the library
    return statistics.median(_ms(case) for _ in range(count))


def _timeout_mock_ms(pool: WarmShellPool, count: int) -> float:
    """Return the ms that one call of a mocked command through `timeout` takes."""
    shell = Shell(pool, virtual=True, timeout_s=_TIMEOUT_S)
    shell.mock("curl").answers("x\n")
    calls = f"for n in {{1..{_MOCK_CALLS}}}; do timeout 5 curl -f url >/dev/null; done"
    shell.evaluate(calls).check()
    with_calls = statistics.median(_ms(lambda: shell.evaluate(calls)) for _ in range(count))
    without = statistics.median(_ms(lambda: shell.evaluate(":")) for _ in range(count))
    shell.finish()
    return (with_calls - without) / _MOCK_CALLS


def _ms(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1000
