"""Divides the wait for a GPU into parts, by a guest's events and a provisioner's steps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.estimates import median_of
from harness.bench.time_to_gpu.samples import Payload, Segment
from harness.errors import ExpectationError, HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.bench.time_to_gpu.estimates import Estimate
    from harness.bench.time_to_gpu.samples import Sample

#: The names of the parts that are not steps of the provisioner.
BETWEEN = "between steps"
REGISTRATION = "registration"
PROVISIONER = "provisioner"
#: The error with which NVIDIA's own driver refuses to open an emulated GPU, which has no engine.
NO_ENGINE = "EIO"


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A step that a provisioner reports; `start_s` is None if the provisioner does not report the start."""

    name: str
    duration_s: float
    start_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Moments:
    """When a guest's events happened, in seconds of the guest's monotonic clock."""

    ready_s: float
    ready_wall_s: float
    """The moment `ready_s` by the wall clock, which provisioners use for their timestamps."""
    ended_s: float
    """When the provisioner's command ended."""
    capacity_s: float
    """When the GPU capacity was advertised for the last time."""
    allocated_s: float | None
    """When an allocated GPU was opened; None if the driver refused to open the GPU."""


def moments_of(
    events: Sequence[Mapping[str, object]], payload: Payload = Payload.STAND_IN
) -> Moments | None:
    """Return when the events of one sample happened, or None if the sample has not ended.

    A sample has ended when the kubelet has allocated a GPU after the kubelet's last start, and the
    provisioner's command has ended. Raises ExpectationError for a GPU that cannot be opened, unless
    the GPU is emulated and the payload is NVIDIA's own driver. Raises HarnessError if the sample
    can never end.
    """

    def stamp(event: Mapping[str, object], clock: str = "monotonic_s") -> float:
        return float(str(event[clock]))

    named: dict[str, list[int]] = defaultdict(list)
    for number, event in enumerate(events):
        named[str(event["name"])].append(number)
    if named["error"]:
        first = events[named["error"][0]]
        raise HarnessError(f"The kubelet or the device plugin failed in the guest: {first}.")
    if not named["mark"] or not named["node-ready"]:
        return None
    since = max([-1, *named["kubelet-started"]])
    allocated = [number for number in named["allocated"] if number > since]
    if not allocated:
        return None
    capacities = [
        number
        for number in named["capacity"]
        if since < number < allocated[0] and events[number]["count"]
    ]
    if not capacities:
        raise HarnessError(
            "The kubelet allocated a GPU in the guest, but the node's capacity showed no GPU between "
            "the last start of the kubelet and the allocation; the recorded events are "
            f"{', '.join(sorted(name for name in named if named[name]))}."
        )
    ready, end = events[named["node-ready"][0]], events[allocated[0]]
    refused = end.get("refused")
    if refused is not None and (payload, refused) != (Payload.NVIDIA, NO_ENGINE):
        raise ExpectationError(
            f"The GPU {end.get('paths')} that the kubelet allocated was expected to open, but its driver "
            f"answered {refused}; look in the node's kernel log for the reason."
        )
    return Moments(
        ready_s=stamp(ready),
        ready_wall_s=stamp(ready, "wall_s"),
        ended_s=stamp(events[named["mark"][0]]),
        capacity_s=stamp(events[capacities[-1]]),
        allocated_s=None if refused is not None else stamp(end),
    )


def critical_path(moments: Moments, steps: Sequence[TimedStep]) -> tuple[Segment, ...]:
    """Return the parts of the wait for a GPU; the sum of the parts is the wait.

    The provisioner's steps run one after another. The gaps between steps are one part: the
    provisioner's own time. The registration with the kubelet is the rest of the wait, after the
    last step that began within the wait. A step without a reported start begins when the previous
    step ends. A step that began after the end of the wait is left out. A step that began before the
    end of the wait and ended later is cut at the end of the wait.
    """
    end = moments.capacity_s - moments.ready_s
    ended = min(end, moments.ended_s - moments.ready_s)
    found: list[Segment] = []
    now, gap = 0.0, 0.0
    for step in steps or [TimedStep(name=PROVISIONER, duration_s=ended, start_s=0.0)]:
        began = now if step.start_s is None else step.start_s
        start, stop = max(now, began), min(end, began + step.duration_s)
        if start >= end or stop <= start:
            continue
        gap += start - now
        found.append(Segment(name=step.name, start_s=start, duration_s=stop - start))
        now = stop
    if now < ended and all(step.start_s is None for step in steps):
        # The provisioner may spend its own time between any two steps.
        gap += ended - now
        now = ended
    if gap > 0:
        found.append(Segment(name=BETWEEN, start_s=0.0, duration_s=gap))
    if end > now:
        found.append(Segment(name=REGISTRATION, start_s=now, duration_s=end - now))
    return tuple(found)


def shares(samples: Iterable[Sample]) -> Mapping[str, Estimate]:
    """Return the median share of each part in the wait, the largest first; samples without a wait are left out."""
    by_name: dict[str, list[float]] = defaultdict(list)
    counted = [sample for sample in samples if sample.segments and sample.wait_s > 0]
    names = {segment.name for sample in counted for segment in sample.segments}
    for sample in counted:
        durations: dict[str, float] = defaultdict(float)
        for segment in sample.segments:
            durations[segment.name] += segment.duration_s
        for name in names:
            by_name[name].append(durations[name] / sample.wait_s)
    found = {name: median_of(values) for name, values in by_name.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1].value))


def unit_shares(samples: Iterable[Sample]) -> Mapping[str, Estimate]:
    """Return the share of the wait after which each systemd unit was ready, the earliest unit first."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        for unit in sample.units if sample.wait_s > 0 else ():
            by_name[unit.name].append(unit.ready_s / sample.wait_s)
    found = {name: median_of(values) for name, values in by_name.items()}
    return dict(sorted(found.items(), key=lambda item: item[1].value))
