"""Figures of clones, by what machines took."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.bench import clone
from harness.bench.call_accounting import Call, CallAccounting
from harness.bench.clone import CloneBench
from harness.bench.spread import Spread
from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_clone_is_compared_with_a_cold_boot_by_medians() -> None:
    spreads: Mapping[str, Spread] = {
        "cold_boot_s": Spread.of([10.0, 40.0, 20.0]),
        "clone_ready_s": Spread.of([0.5, 9.0, 0.4]),
        "prompt_s": Spread.of([2.0]),
    }
    bench = CloneBench(accelerator="tcg", spreads=spreads)

    assert (bench.speedup, bench.prompt_speedup) == (40.0, 10.0)


def test_memory_of_a_clone_is_what_its_process_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rollup").write_text(
        "Rss:  900000 kB\nShared_Dirty:  5000 kB\nPrivate_Clean:  7000 kB\nPrivate_Dirty:  3072 kB\n"
    )
    places = {"/proc/9/smaps_rollup": tmp_path / "rollup"}
    monkeypatch.setattr(clone, "Path", lambda place: places[place])
    machine: Any = SimpleNamespace(vm=SimpleNamespace(pid=9), name="bench")

    assert clone._private_mib(machine) == 3.0
    machine.vm.pid = None
    with pytest.raises(HarnessError, match="machine 'bench' runs elsewhere"):
        clone._private_mib(machine)


def test_calls_have_the_time_of_their_own_process(tmp_path: Path) -> None:
    """A shell waits for other processes too, and a number may be used again."""
    (tmp_path / "calls").write_text(
        "exec 7 jq\nexec 8 sed\nwait 9 1\nwait 8 2500\nwait 7 1000000\nexec 7 awk\nwait 7 3\nexec 10 jq\n"
    )
    accounting = CallAccounting(folder=tmp_path, names=("jq", "sed"))

    assert accounting.calls() == [
        Call(name="sed", cpu_s=0.0025),
        Call(name="jq", cpu_s=1.0),
        Call(name="awk", cpu_s=0.000003),
    ]
    assert accounting.environment == {
        "LD_PRELOAD": str(tmp_path / "wait4_accounting.so"),
        "HARNESS_BENCH_NAMES": ":jq:sed:",
        "HARNESS_BENCH_CALLS": str(tmp_path / "calls"),
    }
    with pytest.raises(HarnessError, match="No shell of the run called an accounted command"):
        CallAccounting(folder=Path("/absent"), names=()).calls()
