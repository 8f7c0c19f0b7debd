"""Deadlines and waits."""

from __future__ import annotations

import datetime as dt
import threading
import time

import pytest
from typing_extensions import override

from harness.provisioning.wait import (
    SYSTEM_CLOCK,
    Deadline,
    Observation,
    SystemClock,
    WaitTimeoutError,
    wait_for,
)
from suites.fakes.clock import FakeClock


def test_remaining_time_of_a_deadline_counts_down_to_zero() -> None:
    clock = FakeClock()
    clock.advance(100)
    deadline = Deadline.after(10, clock)

    assert deadline.remaining_s() == 10
    assert not deadline.has_passed()
    assert deadline.cap(3) == 3
    assert deadline.cap(30) == 10
    clock.advance(10)
    assert deadline.has_passed()
    clock.advance(5)
    assert deadline.remaining_s() == 0
    assert deadline.cap(3) == 0


def test_deadline_can_be_shortened_but_not_extended() -> None:
    clock = FakeClock()
    clock.advance(100)
    deadline = Deadline.after(10, clock)
    clock.advance(4)

    assert deadline.sooner(3) == Deadline(107, clock)
    assert deadline.sooner(7) == deadline


def test_wait_returns_the_first_value_that_is_not_none() -> None:
    clock = FakeClock()
    looks = iter([Observation(None, "nothing"), Observation(False, "it")])

    assert wait_for("a thing", lambda: next(looks), Deadline.after(1, clock)) is False
    assert clock.sleeps == [0.1]


def test_wait_checks_once_more_at_its_deadline_and_reports_the_result() -> None:
    clock = FakeClock()
    clock.advance(7)
    looks: list[float] = []

    def poll() -> Observation[str]:
        looks.append(clock.monotonic())
        if looks[-1] == 8:
            clock.advance(2)
        return Observation(None, f"look {len(looks)}")

    with pytest.raises(WaitTimeoutError) as timeout:
        wait_for("a thing", poll, Deadline.after(1, clock), interval_s=0.75)

    assert looks == [7, 7.75, 8]
    assert str(timeout.value) == "Waited 3.0 s for a thing; last seen: look 3."


class Paused(Deadline):
    """A deadline that explains why it lasted longer."""

    @override
    def account(self) -> str:
        return " The machine was paused for 3 s."


def test_wait_timeout_error_mentions_how_long_the_machine_was_paused() -> None:
    clock = FakeClock()

    with pytest.raises(
        WaitTimeoutError, match=r"last seen: it\. The machine was paused for 3 s\.$"
    ):
        wait_for("a thing", lambda: Observation(None, "it"), Paused(clock.monotonic() + 1, clock))


def test_system_clock_returns_utc_and_sleeps_only_for_positive_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    clock = SystemClock()

    for seconds in (0.25, 0, -1):
        clock.sleep(seconds)

    assert slept == [0.25]
    assert clock.now().tzinfo is dt.timezone.utc
    before = clock.monotonic()
    assert clock.monotonic() >= before
    assert Deadline.after(1000).clock is SYSTEM_CLOCK


class Condition(threading.Condition):
    """A condition that nobody notifies: each wait ends early, and the last wait sets `left` to 0."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    @override
    def wait(self, timeout: float | None = None) -> bool:
        assert timeout
        self.left -= 1
        return False


def test_condition_wait_is_repeated_until_the_predicate_is_true() -> None:
    """A deadline may be extended while a wait with the old limit ends."""
    changed = Condition(3)

    assert Deadline.after(10, FakeClock()).wait(changed, lambda: changed.left == 0)


def test_wait_on_a_condition_ends_at_the_deadline() -> None:
    clock = FakeClock(look_s=4)
    changed = Condition(100)

    assert not Deadline.after(10, clock).wait(changed, lambda: False)
    assert 97 <= changed.left < 100
