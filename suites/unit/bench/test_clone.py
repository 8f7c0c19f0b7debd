"""The figures about clones are computed from measured times and memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.bench import clone
from harness.bench.call_accounting import Call, CallAccounting
from harness.bench.clone import MEASURES, CloneBench, measure_clones
from harness.bench.spread import Spread
from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_speedup_of_a_clone_is_the_ratio_of_two_medians() -> None:
    spreads: Mapping[str, Spread] = {
        "cold_boot_s": Spread.of([10.0, 40.0, 20.0]),
        "clone_ready_s": Spread.of([0.5, 9.0, 0.4]),
        "prompt_s": Spread.of([2.0]),
    }
    bench = CloneBench(accelerator="tcg", spreads=spreads)

    assert (bench.speedup, bench.prompt_speedup) == (40.0, 10.0)


def test_each_measure_of_the_clone_bench_has_the_median_of_its_own_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    medians = {name: float(number) for number, name in enumerate(MEASURES, start=1)}
    plain = ("clone_ready_s", "ping_ms", "exec_ms", "private_mib")
    prompt = SimpleNamespace(prompt_s=medians["prompt_s"], answer_s=medians["answer_s"])
    for name, value in (
        ("booted", None),
        ("cloud_init_done", None),
        ("_cold_boot", medians["cold_boot_s"]),
        ("_plain_clone", {name: medians[name] for name in plain}),
        ("_gpu_clone", medians["clone_gpu_s"]),
        ("measure_prompt", prompt),
        ("seconds_of_command", medians["command_s"]),
    ):
        monkeypatch.setattr(clone, name, lambda *_, value=value: value)
    chosen = SimpleNamespace(accelerator=SimpleNamespace(accel="tcg"))
    lab: Any = SimpleNamespace(
        node_image=lambda: None, ensure_checkpoint=lambda _: None, accelerator=chosen
    )
    told: list[tuple[str, int, int]] = []

    bench = measure_clones(
        lab, runs=2, cold_runs=3, shell_words=[], progress=lambda *each: told.append(each)
    )

    assert {name: spread.median for name, spread in bench.spreads.items()} == medians
    runs = {name: spread.runs for name, spread in bench.spreads.items()}
    assert runs == {name: 3 if name == "cold_boot_s" else 2 for name in MEASURES}
    assert told[:4] == [*(("cold boot", run, 3) for run in (1, 2, 3)), ("clone", 1, 2)]


def test_memory_of_a_clone_is_the_private_dirty_memory_of_its_process(
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


def test_each_external_command_has_the_cpu_time_of_its_own_process(tmp_path: Path) -> None:
    """A shell also waits for other processes, and the kernel may reuse a process id."""
    (tmp_path / "calls").write_text(
        "exec 7 jq\nexec 8 sed\nwait 9 1\nwait 8 2500\nwait 7 1000000\nexec 7 awk\nwait 7 3\nwait 7 500\nexec 10 jq\n"
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
    with pytest.raises(HarnessError, match="No shell of the run called a measured command"):
        CallAccounting(folder=Path("/absent"), names=()).calls()
