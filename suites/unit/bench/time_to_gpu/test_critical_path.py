"""How the wait is divided into parts by a guest's events and a provisioner's steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.bench.time_to_gpu.critical_path import (
    BETWEEN,
    PROVISIONER,
    REGISTRATION,
    Moments,
    TimedStep,
    critical_path,
    moments_of,
    shares,
    unit_shares,
)
from harness.bench.time_to_gpu.samples import Experiment, Payload, Sample, Segment, UnitTimes
from harness.errors import ExpectationError, HarnessError
from suites.unit.bench.time_to_gpu.fleets import events_of

_MOMENTS = Moments(
    ready_s=100.0, ready_wall_s=5000.0, ended_s=109.0, capacity_s=110.0, allocated_s=110.1
)


def test_wait_continues_if_a_restart_of_the_kubelet_cleared_the_capacity() -> None:
    """The plugin registers, the provisioner restarts the kubelet, and the plugin registers again."""
    events = events_of(
        ("node-ready", 10.0),
        *(("capacity", 20.0, 1), ("allocated", 20.1)),
        *(("capacity", 21.0, 0), ("kubelet-stopped", 21.0), ("kubelet-started", 22.0)),
        *(("mark", 22.1), ("plugin-registered", 22.5)),
        *(("capacity", 23.0, 1), ("allocated", 23.2)),
    )

    assert moments_of(events) == Moments(
        ready_s=10.0, ready_wall_s=1010.0, ended_s=22.1, capacity_s=23.0, allocated_s=23.2
    )
    assert moments_of(events[:-1]) is None


def test_wait_ends_when_the_capacity_last_returns_after_the_last_kubelet_start() -> None:
    begin = events_of(("kubelet-started", 5.0), ("node-ready", 10.0), ("mark", 11.0))
    disappeared = events_of(
        *(("capacity", 20.0, 1), ("capacity", 21.0, 0), ("capacity", 24.0, 1)),
        ("allocated", 24.2),
    )
    restarted = events_of(
        *(("capacity", 20.0, 1), ("allocated", 20.1)),
        *(("kubelet-started", 30.0), ("capacity", 31.0, 1), ("allocated", 31.5)),
    )
    for events, capacity_s, allocated_s in ((disappeared, 24.0, 24.2), (restarted, 31.0, 31.5)):
        moments = moments_of([*begin, *events])

        assert moments is not None
        assert (moments.capacity_s, moments.allocated_s) == (capacity_s, allocated_s)


def test_moments_are_none_until_the_provisioner_has_ended() -> None:
    events = events_of(("node-ready", 10.0), ("capacity", 20.0, 1), ("allocated", 20.1))

    assert moments_of(events) is None


def test_error_event_from_the_guest_ends_the_wait_with_a_harness_error() -> None:
    with pytest.raises(HarnessError, match="failed in the guest"):
        moments_of(events_of(("node-ready", 1.0), ("error", 2.0)))


def test_gpu_allocation_before_any_gpu_capacity_is_an_error() -> None:
    """The events may be out of order."""
    begin = events_of(("node-ready", 1.0), ("mark", 2.0))

    for end in (
        (("capacity", 3.0, 0), ("allocated", 4.0)),
        (("allocated", 3.0), ("capacity", 3.1, 1)),
    ):
        with pytest.raises(HarnessError, match="capacity showed no GPU between"):
            moments_of([*begin, *events_of(*end)])


def _events_of_a_refusal(name: str) -> list[dict[str, object]]:
    events = events_of(
        ("node-ready", 10.0), ("mark", 19.0), ("capacity", 20.0, 1), ("allocated", 20.1)
    )
    events[-1] |= {"paths": ["/dev/nvidia0"], "refused": name}
    return events


def test_open_error_of_the_gpu_device_raises_an_expectation_error() -> None:
    with pytest.raises(ExpectationError, match=r"'/dev/nvidia0'.*answered EIO"):
        moments_of(_events_of_a_refusal("EIO"))
    with pytest.raises(ExpectationError, match="answered ENXIO"):
        moments_of(_events_of_a_refusal("ENXIO"), Payload.NVIDIA)


def test_wait_ends_when_the_capacity_appears_if_nvidias_driver_refuses_the_emulated_gpu() -> None:
    """The GPU has no engine: the driver makes its device node but cannot open it."""
    assert moments_of(_events_of_a_refusal("EIO"), Payload.NVIDIA) == Moments(
        ready_s=10.0, ready_wall_s=1010.0, ended_s=19.0, capacity_s=20.0, allocated_s=None
    )


def test_parts_of_the_critical_path_add_up_to_the_wait() -> None:
    """Gaps of 1 s and 2 s precede the first two steps; the third step ends 0.5 s after the second."""
    steps = [
        TimedStep(name="one", start_s=1.0, duration_s=2.0),
        TimedStep(name="two", start_s=5.0, duration_s=4.0),
        TimedStep(name="beside it", start_s=6.0, duration_s=3.5),
    ]

    path = critical_path(_MOMENTS, steps)

    assert path == (
        Segment(name="one", start_s=1.0, duration_s=2.0),
        Segment(name="two", start_s=5.0, duration_s=4.0),
        Segment(name="beside it", start_s=9.0, duration_s=0.5),
        Segment(name=BETWEEN, start_s=0.0, duration_s=3.0),
        Segment(name=REGISTRATION, start_s=9.5, duration_s=0.5),
    )
    assert sum(part.duration_s for part in path) == 10.0


def test_critical_path_ends_when_the_gpu_capacity_appears() -> None:
    steps = [
        TimedStep(name="across", start_s=0.0, duration_s=60.0),
        TimedStep(name="after", start_s=60.0, duration_s=5.0),
    ]

    assert critical_path(_MOMENTS, steps) == (
        Segment(name="across", start_s=0.0, duration_s=10.0),
    )


def test_steps_without_timestamps_are_placed_one_after_the_other() -> None:
    steps = [TimedStep(name="one", duration_s=3.0), TimedStep(name="two", duration_s=4.0)]

    path = critical_path(_MOMENTS, steps)

    assert [(part.name, part.duration_s) for part in path] == [
        ("one", 3.0),
        ("two", 4.0),
        (BETWEEN, 2.0),
        (REGISTRATION, 1.0),
    ]


def test_gap_excludes_the_time_after_the_last_step_if_one_step_has_a_timestamp() -> None:
    steps = [
        TimedStep(name="one", start_s=1.0, duration_s=2.0),
        TimedStep(name="two", duration_s=3.0),
    ]

    path = critical_path(_MOMENTS, steps)

    assert [(part.name, part.duration_s) for part in path] == [
        *(("one", 2.0), ("two", 3.0), (BETWEEN, 1.0), (REGISTRATION, 4.0)),
    ]


def test_critical_path_of_a_provisioner_without_steps_has_one_part() -> None:
    path = critical_path(_MOMENTS, [])

    assert [(part.name, part.duration_s) for part in path] == [
        (PROVISIONER, 9.0),
        (REGISTRATION, 1.0),
    ]


def test_duration_of_a_part_is_divided_by_the_wait_of_the_same_sample() -> None:
    def sample(build_s: float, rest_s: float) -> Sample:
        return Sample(
            experiment=Experiment.SCALE_UP,
            variant="x",
            wait_s=build_s + rest_s,
            allocated_s=build_s + rest_s,
            segments=tuple(
                Segment(name=name, start_s=0.0, duration_s=each)
                # A provisioner may take a step twice.
                for name, each in (
                    ("build", build_s / 4),
                    ("rest", rest_s),
                    ("build", build_s * 0.75),
                )
                if each
            ),
        )

    found = shares([sample(1.0, 3.0), sample(2.0, 6.0), sample(5.0, 15.0)])

    assert list(found) == ["rest", "build"]
    assert (found["rest"].value, found["build"].value) == (0.75, 0.25)
    found = shares([sample(1.0, 3.0), sample(0.0, 6.0), sample(0.0, 15.0)])
    assert (found["rest"].value, found["build"].value) == (1.0, 0.0)


def test_units_are_in_the_order_in_which_they_were_ready() -> None:
    units = (
        UnitTimes(name="kubelet", started_s=8.0, ready_s=9.0),
        UnitTimes(name="containerd", started_s=1.0, ready_s=4.0),
    )
    sample = Sample(
        experiment=Experiment.SCALE_UP, variant="x", wait_s=10.0, allocated_s=10.0, units=units
    )

    found = unit_shares([sample])

    assert {name: share.value for name, share in found.items()} == {
        "containerd": 0.4,
        "kubelet": 0.9,
    }
    assert list(found) == ["containerd", "kubelet"]
    # A sample without a wait has no shares.
    assert unit_shares([replace(sample, wait_s=0.0)]) == {}
