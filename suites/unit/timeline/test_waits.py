"""Which work waited for which other work."""

from __future__ import annotations

from typing import Any

import pytest

from harness.evidence.history import UnitTimes
from harness.timeline import Lane, Span, SpanState
from harness.timeline.waits import with_blockers, with_critical_path


def a_span(name: str, start_s: float, end_s: float, **fields: Any) -> Span:
    return Span(**{"lane": Lane.UNITS, "name": name, "start_s": start_s, "end_s": end_s, **fields})


def after(name: str, *names: str) -> UnitTimes:
    return UnitTimes(
        name=name,
        active="active",
        result="success",
        after=frozenset(names),
        started_s=0.0,
        ready_s=0.0,
    )


@pytest.mark.parametrize(
    ("began_s", "start_s", "blockers", "from_s"),
    [
        (1.0, 6.0, ("b",), 3.0),
        (1.0, 9.0, ("b",), 3.0),
        (1.0, 9.1, (), None),
        (1.0, 5.5, ("a",), 2.0),
        (4.0, 6.0, ("b",), 4.0),
        # The units started in the initrd, before the system's own systemd.
        (7.0, 6.0, ("b",), 6.0),
    ],
)
def test_unit_waited_for_the_predecessor_that_was_ready_last(
    began_s: float, start_s: float, blockers: tuple[str, ...], from_s: float | None
) -> None:
    before = [a_span("z", 0.5, 2.0), a_span("a", 1.0, 3.0), a_span("b", 2.0, 6.0)]
    units = [after("c", "a", "b", "z", "absent")]

    *_, found = with_blockers(
        [*before, a_span("c", start_s, 10.0)], units, began_s=began_s, offset_s=0.0
    )

    assert (found.blockers, found.blocked_from_s) == (blockers, from_s)


def test_waiting_unit_is_blocked_by_running_units_and_not_by_waiting_units() -> None:
    spans = [
        a_span("done", 1.0, 4.0),
        a_span("runs", 2.0, 9.0, state=SpanState.RUNNING),
        a_span("waits", 9.0, 9.0, state=SpanState.WAITING),
        a_span("last", 9.0, 9.0, state=SpanState.WAITING),
    ]

    found = with_blockers(
        spans, [after("last", "waits", "runs", "done"), after("waits")], began_s=1.0, offset_s=0.0
    )

    assert (found[3].blockers, found[3].blocked_from_s) == (("runs",), 4.0)


def test_unit_start_in_an_earlier_boot_has_no_blockers() -> None:
    spans = [
        *(a_span("a", 1.0, 2.0), a_span("b", 2.0, 3.0), a_span("c", 2.0, 3.0)),
        a_span("b", 22.0, 23.0),
    ]

    found = with_blockers(spans, [after("b", "a"), after("c", "a")], began_s=20.0, offset_s=20.0)

    assert [span.blockers for span in found] == [(), (), (), ()]


def critical(*spans: Span, since_s: float = 0.0) -> list[str]:
    return [span.name for span in with_critical_path(spans, since_s=since_s) if span.is_critical]


def test_critical_path_ends_at_a_span_that_still_runs() -> None:
    done = a_span("multi-user.target", 1.0, 50.0)
    first = a_span("first", 2.0, 60.0, state=SpanState.RUNNING)
    second = a_span("second", 3.0, 60.0, state=SpanState.WAITING)
    goal = a_span("cloud-init.target", 60.0, 60.0, state=SpanState.WAITING, blockers=("second",))

    assert critical(done, first, second) == ["first"]
    assert critical(done, first, second, goal) == ["second", "cloud-init.target"]
    other = a_span("multi-user.target", 60.0, 60.0, state=SpanState.WAITING, blockers=("first",))
    assert critical(other, first, second, goal) == ["second", "cloud-init.target"]
    assert critical(done, a_span("later", 1.0, 70.0)) == ["multi-user.target"]
    assert critical(a_span("one", 1.0, 5.0), a_span("two", 1.0, 6.0)) == ["two"]
    assert critical() == []


def test_critical_path_ends_at_units_that_wait_for_each_other() -> None:
    assert critical(
        a_span("a", 1.0, 5.0, blockers=("b",)), a_span("b", 1.0, 6.0, blockers=("a",))
    ) == ["a", "b"]


def test_span_that_ended_before_the_checkpoint_is_not_on_the_critical_path() -> None:
    before = a_span("a", 1.0, 5.0)

    assert critical(before, a_span("b", 6.0, 9.0, blockers=("a",)), since_s=5.0) == ["b"]


def test_only_one_of_two_simultaneous_steps_is_on_the_critical_path() -> None:
    """Of two simultaneous steps, the step that ended last counts."""
    assert critical(
        a_span("cloud-init.target", 10.0, 20.0),
        a_span("before", 1.0, 5.0, lane=Lane.STEPS),
        a_span("pull", 10.0, 13.0, lane=Lane.STEPS),
        a_span("beside", 10.0, 16.0, lane=Lane.STEPS),
        a_span("build", 13.0, 19.0, lane=Lane.STEPS),
        a_span("make", 14.0, 18.0, lane=Lane.DKMS),
    ) == ["pull", "cloud-init.target", "build", "make"]
