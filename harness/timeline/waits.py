"""Pure functions that find the unit for which each unit waited, and the critical path."""

from __future__ import annotations

import bisect
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.timeline import Lane, Span, SpanState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from harness.evidence.history import UnitTimes

#: Even under TCG, systemd starts a unit at most this number of seconds after the last unit for which
#: the unit waits. A later start had another reason, such as a command.
_DISPATCH_S = 3.0
#: The targets that end a boot, the last target first.
_GOALS = ("cloud-init.target", "graphical.target", "multi-user.target")
_OPEN = frozenset({SpanState.RUNNING, SpanState.WAITING})
_INSIDE = (Lane.STEPS, Lane.DKMS, Lane.CONTAINERS)
#: Timestamps of files and logs are rounded by up to this number of seconds.
_ROUNDING_S = 1.5


def with_blockers(
    spans: Sequence[Span], units: Iterable[UnitTimes], *, began_s: float, offset_s: float
) -> list[Span]:
    """Return the spans of units, each with its blocker.

    A unit's blocker is the unit that became ready last, among the units that systemd starts before
    the blocked unit.

    `began_s` is the time at which systemd started; `offset_s` is added to the timestamps of
    `units`.
    """
    after = {unit.name: unit.after for unit in units}
    latest = {span.name: span for span in spans if span.lane is Lane.UNITS}
    found = []
    for span in spans:
        if span is not latest.get(span.name) or span.start_s < offset_s:
            found.append(span)
            continue
        before = [latest[name] for name in after.get(span.name, ()) if name in latest]
        found.append(_blocked(span, before, began_s))
    return found


def _blocked(span: Span, before: Sequence[Span], began_s: float) -> Span:
    if span.state is SpanState.WAITING:
        holding = [each for each in before if each.state in _OPEN]
        others = [each.end_s for each in before if each.state not in _OPEN]
        running = [each for each in holding if each.state is SpanState.RUNNING] or holding
        return replace(
            span,
            blockers=tuple(sorted(each.name for each in running)),
            blocked_from_s=max([began_s, *others]),
        )
    ready = sorted(
        (each for each in before if each.end_s <= span.start_s), key=lambda each: each.end_s
    )
    if not ready or span.start_s - ready[-1].end_s > _DISPATCH_S:
        return span
    alone_s = max(began_s, ready[-2].end_s if len(ready) > 1 else began_s)
    return replace(span, blockers=(ready[-1].name,), blocked_from_s=min(alone_s, span.start_s))


def with_critical_path(spans: Sequence[Span], *, since_s: float = 0.0) -> list[Span]:
    """Return the spans with the critical path marked, in order of time.

    The critical path leaves out work that ended before `since_s`, the time at which the machine
    continued from a checkpoint.

    The critical path is built backwards. The critical path ends with a unit that still waits or
    runs. If no unit waits or runs, the critical path ends with the boot's goal, such as
    `multi-user.target`, or, without a goal, with the unit that ended last. From its end, the
    critical path goes back from each unit to the unit's blocker. If a span is on the critical path,
    steps, builds and containers within this span are on the critical path too; of overlapping inner
    spans of one kind, only one is on the critical path.
    """
    critical: set[int] = set()
    units = {
        span.name: index
        for index, span in enumerate(spans)
        if span.lane is Lane.UNITS and span.end_s > since_s
    }
    end = _goal(spans, units)
    while end is not None and end not in critical:
        critical.add(end)
        blockers = spans[end].blockers
        end = next((units[name] for name in blockers if name in units), None)
    steps = [
        index
        for index, span in enumerate(spans)
        if span.lane is Lane.STEPS and span.end_s > since_s
    ]
    if not any(spans[index].lane is Lane.UNITS for index in critical) and steps:
        critical.update(steps)
    for lane in _INSIDE:
        outer = [spans[index] for index in critical if spans[index].lane.name in _OUTER[lane]]
        by_end = sorted(
            (index for index, span in enumerate(spans) if span.lane is lane),
            key=lambda index: (spans[index].end_s, -index),
        )
        ends = [spans[index].end_s for index in by_end]
        for each in outer:
            critical.update(_chain_inside(spans, by_end, ends, each))
    return sorted(
        (replace(span, is_critical=index in critical) for index, span in enumerate(spans)),
        key=lambda span: (span.start_s, span.end_s),
    )


_OUTER: Mapping[Lane, frozenset[str]] = {
    Lane.STEPS: frozenset({Lane.UNITS.name, Lane.STEPS.name}),
    Lane.DKMS: frozenset({Lane.STEPS.name}),
    Lane.CONTAINERS: frozenset({Lane.STEPS.name}),
}


def _goal(spans: Sequence[Span], units: Mapping[str, int]) -> int | None:
    open_units = [index for index in units.values() if spans[index].state in _OPEN]
    if open_units:
        goals = [units[name] for name in _GOALS if units.get(name) in open_units]
        return goals[0] if goals else min(open_units, key=lambda index: spans[index].start_s)
    reached = [units[name] for name in _GOALS if name in units]
    if reached:
        return max(reached, key=lambda index: spans[index].end_s)
    return max(units.values(), key=lambda index: spans[index].end_s, default=None)


def _chain_inside(
    spans: Sequence[Span], by_end: Sequence[int], ends: Sequence[float], outer: Span
) -> Iterator[int]:
    """Yield the indexes of spans that are within `outer` and do not overlap, from the last span to the first span.

    `by_end` has the indexes of one lane's spans, sorted by the ends of the spans; `ends` has the
    sorted ends.
    """
    earliest_s = outer.start_s - _ROUNDING_S
    at = bisect.bisect_right(ends, outer.end_s + _ROUNDING_S)
    while at and ends[at - 1] >= earliest_s:
        at -= 1
        span = spans[by_end[at]]
        if span is not outer and span.start_s >= earliest_s:
            yield by_end[at]
            at = min(at, bisect.bisect_right(ends, span.start_s + _ROUNDING_S))
