"""Clocks, deadlines and waiting; only this module calls `time.sleep`."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

T = TypeVar("T")


class Clock(Protocol):
    """A source of time; tests pass a fake clock."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes backwards."""
        ...

    def now(self) -> dt.datetime:
        """Return the wall-clock time in UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...


class SystemClock:
    """The clock of this system."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> dt.datetime:
        return dt.datetime.now(tz=dt.timezone.utc)

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


SYSTEM_CLOCK: Clock = SystemClock()


@dataclass(frozen=True)
class Deadline:
    """The time at which a wait ends; all steps of the wait share one deadline."""

    at: float
    clock: Clock = SYSTEM_CLOCK

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(clock.monotonic() + seconds, clock)

    def remaining_s(self) -> float:
        """Return the seconds until the deadline, never below zero."""
        return max(0.0, self.at - self.clock.monotonic())

    def has_passed(self) -> bool:
        return self.remaining_s() <= 0

    def cap(self, seconds: float) -> float:
        """Return the smaller of `seconds` and the remaining time."""
        return min(seconds, self.remaining_s())

    def sooner(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and a deadline `seconds` from now."""
        return Deadline(min(self.at, self.clock.monotonic() + seconds), self.clock)

    def wait(self, changed: threading.Condition, is_over: Callable[[], object]) -> bool:
        """Wait on the condition `changed`, whose lock the caller holds.

        Return whether `is_over` became true before the deadline.
        """
        while not is_over():
            left_s = self.remaining_s()
            if left_s <= 0:
                return False
            changed.wait(left_s)
        return True

    def account(self) -> str:
        """Return a blank and a sentence about the time that the deadline does not count.

        Return an empty text if the deadline counts all time.
        """
        return ""


class WaitTimeoutError(Exception):
    """A wait reached its deadline; the message contains the last observation."""


@dataclass(frozen=True)
class Observation(Generic[T]):
    """The result of one check: a value if the wait is over, and a description of the observed state."""

    value: T | None
    seen: str


def wait_for(
    what: str,
    look: Callable[[], Observation[T]],
    deadline: Deadline,
    *,
    interval_s: float = 0.1,
) -> T:
    """Call `look` until its observation has a value, and return the value.

    `look` may raise an exception to end the wait early, if the expected state can no longer be
    reached. If the caller can wait for an event, wait for the event instead of calling this
    function.

    Raises WaitTimeoutError with the last observation if the deadline passes.
    """
    started = deadline.clock.monotonic()
    while True:
        observation = look()
        if observation.value is not None:
            return observation.value
        if deadline.has_passed():
            waited = deadline.clock.monotonic() - started
            raise WaitTimeoutError(
                f"Waited {waited:.1f} s for {what}; last seen: {observation.seen}."
                + deadline.account()
            )
        deadline.clock.sleep(deadline.cap(interval_s))
