"""The order of measurements, and the parts of a guest's output that belong to the wait."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.bench.time_to_gpu.critical_path import BETWEEN, REGISTRATION, Moments
from harness.bench.time_to_gpu.measure import Plan, _compilation, _units, tasks_of
from harness.bench.time_to_gpu.node_tools import EVENTS
from harness.bench.time_to_gpu.samples import Experiment, Mode, OracleResult, Trim, UnitTimes
from harness.errors import ExpectationError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.evidence.state import StateKind, Unknown
from harness.provisioner import Provisioner
from harness.provisioner.declaration import write_declaration
from harness.provisioner.outcome import LogPatterns, OutcomeDeclaration
from suites.unit.bench.time_to_gpu.fleets import ScriptedNodes, a_fleet, events_of
from suites.unit.evidence.folders import EvidenceFolder
from suites.unit.evidence.states import a_file, a_state

if TYPE_CHECKING:
    from pathlib import Path

    from harness.bench.time_to_gpu.nodes import Fleet
    from harness.bench.time_to_gpu.samples import Measured
    from harness.evidence import Evidence
    from harness.lab import Lab
    from harness.lab.node import Node

MOMENTS = Moments(
    ready_s=100.0, ready_wall_s=5000.0, ended_s=109.0, capacity_s=110.0, allocated_s=110.1
)


def kinds(plan: Plan) -> list[str]:
    """Return the kinds of a plan's tasks; the fleet is not used, since no task runs."""
    return [task.kind for task in tasks_of(cast("Fleet", object()), plan)]


def test_each_round_repeats_only_the_variants_that_still_need_samples() -> None:
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


def test_compilation_that_began_before_the_wait_is_not_timed() -> None:
    assert _compilation(["5001.0", "5031.5"], MOMENTS) == 30.5
    assert _compilation(["4000.0", "4100.0", "5001.0", "5031.5"], MOMENTS) == 30.5
    assert _compilation(["4990.0", "5031.5"], MOMENTS) is None
    assert _compilation([], MOMENTS) is None


def test_units_started_during_the_wait_are_listed_in_order_of_their_start() -> None:
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


NOTHING = Plan(
    scale_ups=0,
    resets=0,
    trims=0,
    teardowns=0,
    is_judged=False,
    modes=[Mode.BUILD],
    reset_modes=[Mode.BUILD],
)
#: A GPU that is allocated 9.2 s after the node was ready, at 1010 s by the wall clock.
DONE = events_of(
    *(("node-ready", 10.0), ("mark", 18.0), ("capacity", 19.0, 1), ("allocated", 19.2))
)


def measured(nodes: ScriptedNodes, plan: Plan, **changes: Any) -> list[Measured]:
    fleet = replace(a_fleet(), lab=cast("Lab", nodes), **changes)
    # The image of a bake, which the lab can't make.
    fleet.__dict__["baked"] = fleet.node_image
    return [task.run(lambda _line: None) for task in tasks_of(fleet, plan)]


def result_of(
    folder: Path, action: str, *steps: tuple[str, str, float, str | None], reason: str = "kernel"
) -> Evidence:
    """Return evidence with this decision and these steps: name, status, seconds and start."""
    folder.mkdir()
    return (
        EvidenceFolder(folder)
        .file(
            CLOUD_INIT_OUTPUT_PATH,
            f"AKS_GPU_PREBAKE event=decision action={action} reason={reason}\n",
        )
        .outcome(
            decision={"action": action, "reason": reason},
            steps=[
                {"name": name, "status": status, "duration_s": took_s, "started": started}
                for name, status, took_s, started in steps
            ],
        )
        .evidence
    )


def test_scale_up_with_a_policy_reset_returns_two_samples(
    tmp_path: Path,
) -> None:
    """Each sample has its own events. The capacity counts as cleared until it appears again."""
    steps = (
        ("install-driver", "done", 5.0, "1970-01-01T00:16:51+00:00"),
        ("probe", "skipped", 0.0, "1970-01-01T00:16:56+00:00"),
        ("start-kubelet", "done", 1.0, "1970-01-01T00:16:57+00:00"),
    )
    cleared = (("capacity", 19.0, 1), ("capacity", 20.0, 0))
    nodes = ScriptedNodes(
        events=[
            *([], events_of(("node-ready", 10.0), ("mark", 18.0)), DONE),
            *(events_of(*cleared, ("capacity", 21.0, 1)), events_of(*cleared)),
            [*DONE[:-1], *events_of(("allocated", 19.7))],
        ],
        results=[result_of(tmp_path / each, "install", *steps) for each in ("1", "2")],
    )

    (both,) = measured(nodes, replace(NOTHING, scale_ups=1, resets=1))

    nodes.assert_used_up()
    # The events of the first wait are removed once the capacity stays cleared.
    assert nodes.ran[: nodes.ran.index(("rm", "-f", EVENTS))].count(("read", EVENTS)) == 5
    fresh, again = both.samples
    assert (fresh.experiment, again.experiment) == (Experiment.SCALE_UP, Experiment.POLICY_RESET)
    assert (fresh.wait_s, again.wait_s) == (9.0, 9.0)
    assert (fresh.allocated_s, again.allocated_s) == (9.2, 9.7)
    assert [(part.name, part.start_s, part.duration_s) for part in fresh.segments] == [
        ("install-driver", 1.0, 5.0),
        ("start-kubelet", 7.0, 1.0),
        (BETWEEN, 0.0, 2.0),
        (REGISTRATION, 8.0, 1.0),
    ]


def test_steps_of_a_log_become_segments_in_the_order_of_the_log(tmp_path: Path) -> None:
    log = LogPatterns(path="/var/log/mine", step=r"(?P<name>\w+) took (?P<duration_s>\S+) s")
    mine = Provisioner(name="mine", run=["/opt/mine"], outcome=OutcomeDeclaration(log=log))
    folder = EvidenceFolder(tmp_path).file("/var/log/mine", "one took 3 s\ntwo took 4 s\n")
    write_declaration(mine, tmp_path)
    nodes = ScriptedNodes(events=[DONE], results=[folder.evidence])

    (one,) = measured(nodes, replace(NOTHING, scale_ups=1, modes=[Mode.OWN]), own=mine)

    (sample,) = one.samples
    assert [part.name for part in sample.segments] == ["one", "two", BETWEEN, REGISTRATION]
    assert nodes.requests[0].provisioner is mine


def test_node_whose_install_steps_do_not_match_its_mode_is_an_error(tmp_path: Path) -> None:
    """The log also has the step of the other way to install the driver, but this step was skipped."""
    for number, (mode, action, reason, step, is_right) in enumerate(
        (
            (Mode.PREBAKED, "install-skip-build", "ok", "", True),
            (Mode.PREBAKED, "install", "no_record", "install-driver", False),
            (Mode.BUILD, "install-skip-build", "ok", "install-driver", False),
            (Mode.BUILD, "install", "no_record", "other", False),
            (Mode.OTHER_KERNEL, "install", "kernel", "install-driver", True),
            (Mode.OTHER_KERNEL, "install-skip-build", "ok", "install-driver", False),
            (Mode.NEAR, "install", "no_record", "install-precompiled-driver", True),
            (Mode.NEAR, "install", "no_record", "install-driver", False),
            (Mode.FAR, "install", "no_record", "install-driver", False),
        )
    ):
        names = ("install-driver", "install-precompiled-driver")
        steps = [(name, "done" if name == step else "skipped", 1.0, None) for name in names]
        result = result_of(tmp_path / str(number), action, *steps, reason=reason)
        nodes = ScriptedNodes(events=[DONE], results=[result])
        plan = replace(NOTHING, scale_ups=1, modes=[mode])

        if is_right:
            assert len(measured(nodes, plan)[0].samples) == 1
        else:
            with pytest.raises(ExpectationError) as caught:
                measured(nodes, plan)
            assert caught.value.evidence is not None
            assert not nodes.is_running


def test_node_is_compared_only_after_the_first_teardown_of_each_kind(tmp_path: Path) -> None:
    """The result lists differences and parts that could not be read."""
    removals = [
        result_of(tmp_path / str(number), "teardown", ("clean-up-driver", "done", 0.5, None))
        for number in range(5)
    ]
    left = a_state({"/usr/bin/nvidia-smi": a_file()})
    unread = a_state(None, None, Unknown(StateKind.PATHS, "/dev", "It is too slow."))
    nodes = ScriptedNodes(
        results=removals, states=[a_state(), left, unread], printed="100.5 130.75\n"
    )

    compared, fast, slow = measured(nodes, replace(NOTHING, teardowns=2, is_judged=True))

    nodes.assert_used_up()
    assert [(each.way, each.duration_s) for each in compared.teardowns] == [
        *(("fast", 0.5), ("dkms-remove", 30.25)),
    ]
    by_way = {each.way: each for each in compared.oracle}
    assert len(by_way["fast"].differences) == len(by_way["dkms-remove"].differences) == 1
    assert "/usr/bin/nvidia-smi" in by_way["fast"].differences[0]
    assert by_way["dkms-remove"] == OracleResult(
        way="dkms-remove", differences=("? path /dev: It is too slow.",)
    )
    assert [(each.teardowns[0].way, each.oracle) for each in (fast, slow)] == [
        *(("fast", ()), ("dkms-remove", ())),
    ]


def test_skipped_teardown_raises_an_expectation_error(tmp_path: Path) -> None:
    result = result_of(tmp_path / "1", "teardown", ("clean-up-driver", "skipped", 0.1, None))

    with pytest.raises(ExpectationError, match="'skipped'"):
        measured(ScriptedNodes(results=[result]), replace(NOTHING, teardowns=1))
