"""Deadlines, clocks and bounded retries: the only place that sleeps."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Clock(Protocol):
    """Time as the code sees it; tests hand in one that only counts."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...

    def now(self) -> dt.datetime:
        """Return the wall-clock time, with UTC as its zone."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class SystemClock:
    """The machine's own clock."""

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
    """A point in time after which nobody waits any longer; shared by all steps of one wait."""

    at: float
    clock: Clock = SYSTEM_CLOCK

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Return the deadline that is `seconds` from now."""
        return cls(clock.monotonic() + seconds, clock)

    def remaining_s(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self.at - self.clock.monotonic())

    def has_passed(self) -> bool:
        return self.remaining_s() <= 0

    def cap(self, seconds: float) -> float:
        """Return `seconds`, or what is left where that is less."""
        return min(seconds, self.remaining_s())

    def sooner(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and one `seconds` from now."""
        return Deadline(min(self.at, self.clock.monotonic() + seconds), self.clock)


class WaitTimeoutError(Exception):
    """A wait reached its deadline; the message tells what was last seen."""


@dataclass(frozen=True)
class Observation(Generic[T]):
    """What one look found: a value when the wait is over, else a description for the reader."""

    value: T | None
    seen: str


def wait_for(
    what: str,
    look: Callable[[], Observation[T]],
    deadline: Deadline,
    *,
    interval_s: float = 0.1,
) -> T:
    """Look until `look` returns a value.

    `look` raises to end the wait early, at a state from which nothing good comes. For things
    that offer an event, wait on the event instead.

    Raises WaitTimeoutError with what the last look saw.
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
            )
        deadline.clock.sleep(deadline.cap(interval_s))
