"""What is measured in which order, and what of a guest's output belongs to the wait."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from harness.bench.time_to_gpu.critical_path import Moments
from harness.bench.time_to_gpu.measure import Plan, _compilation, _units, tasks_of
from harness.bench.time_to_gpu.samples import Mode, Trim, UnitTimes

if TYPE_CHECKING:
    from harness.bench.time_to_gpu.nodes import Fleet
    from harness.lab.node import Node

MOMENTS = Moments(
    ready_s=100.0, ready_wall_s=5000.0, ended_s=109.0, capacity_s=110.0, allocated_s=110.1
)


def kinds(plan: Plan) -> list[str]:
    """Return what the tasks of a plan measure; they use the fleet only when they run."""
    return [task.kind for task in tasks_of(cast("Fleet", object()), plan)]


def test_each_round_has_all_variants_that_need_one_more_sample() -> None:
    plan = Plan(
        scale_ups=2,
        resets=1,
        trims=3,
        teardowns=2,
        is_judged=True,
        modes=[Mode.BUILD, Mode.NEAR],
        reset_modes=[Mode.NEAR],
    )
    trims = [f"trims, {trim.value}" for trim in Trim]

    assert kinds(plan) == [
        "teardowns, compared",
        *("fresh node, build-at-boot", "fresh node, precompiled-near, and a policy reset"),
        *trims,
        *("teardown, fast", "teardown, dkms-remove"),
        *("fresh node, build-at-boot", "fresh node, precompiled-near"),
        *trims,
        *trims,
    ]
    unjudged = replace(plan, scale_ups=0, trims=0, is_judged=False)
    assert kinds(unjudged) == ["teardown, fast", "teardown, dkms-remove"] * 2


def test_only_a_compilation_within_the_wait_counts() -> None:
    assert _compilation(["5001.0", "5031.5"], MOMENTS) == 30.5
    assert _compilation(["4000.0", "4100.0", "5001.0", "5031.5"], MOMENTS) == 30.5
    assert _compilation(["4990.0", "5031.5"], MOMENTS) is None
    assert _compilation([], MOMENTS) is None


def test_units_that_were_started_within_the_wait_are_timed_once() -> None:
    blocks = [
        f"Id={name}.service\nNames={names}\nLoadState=loaded\nActiveState=active\n"
        f"UnitFileState=enabled\nInactiveExitTimestampMonotonic={started}\n"
        f"ActiveEnterTimestampMonotonic={ready}\n"
        for name, names, started, ready in (
            ("late", "late.service", 104_000_000, 108_000_000),
            ("soon", "soon.service other.service", 101_000_000, 102_500_000),
            ("before", "before.service", 99_000_000, 101_000_000),
            ("after", "after.service", 109_000_000, 111_000_000),
            ("never", "never.service", 0, 0),
        )
    ]
    guest = SimpleNamespace(output_of=lambda *_: "\n".join(blocks))

    assert _units(cast("Node", SimpleNamespace(guest=guest)), MOMENTS) == (
        UnitTimes(name="soon", started_s=1.0, ready_s=2.5),
        UnitTimes(name="late", started_s=4.0, ready_s=8.0),
    )
