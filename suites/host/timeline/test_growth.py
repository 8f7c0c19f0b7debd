"""How the time to read a timeline grows with the number of its spans."""

from __future__ import annotations

import time

import pytest

from harness.evidence.history import UnitTimes
from harness.timeline import Lane, Span, SpanState, Timeline
from harness.timeline.rows import rows_of
from harness.timeline.waits import with_blockers, with_critical_path


def time_of(lane: Lane, state: SpanState, count: int) -> float:
    """Return the seconds for `count` simultaneous spans, each after all others if they are units."""
    names = [f"{number}.service" for number in range(count)]
    after = frozenset(names if lane is Lane.UNITS else ())
    units = [
        UnitTimes(
            name=name, active="active", result="success", after=after, started_s=0.0, ready_s=0.0
        )
        for name in names
    ]
    spans = [Span(lane=lane, name=each, start_s=0.0, end_s=9.0, state=state) for each in names]
    begun = time.process_time()

    found = with_critical_path(with_blockers(spans, units, began_s=0.0, offset_s=0.0))
    rows_of([Timeline(title="x", end_s=9.0, spans=tuple(found))])

    return time.process_time() - begun


@pytest.mark.parametrize("state", [SpanState.DONE, SpanState.WAITING])
@pytest.mark.parametrize(
    ("lane", "count", "factor"),
    [(Lane.STEPS, 800, 8), (Lane.UNITS, 100, 32)],
    ids=["steps", "units"],
)
def test_time_to_read_a_timeline_grows_at_most_linearly_with_spans_and_orderings(
    lane: Lane, count: int, factor: float, state: SpanState
) -> None:
    """Four times as many steps take 4 times as long; four times as many units have 16 times the orders.

    With one power more, the factors would be 16 and 64.
    """
    small, large = (
        min(time_of(lane, state, size) for _ in range(3)) for size in (count, 4 * count)
    )

    assert large < factor * small
