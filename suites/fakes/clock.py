"""The fake clock of all suites."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.provisioning.wait import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH = dt.datetime(2026, 8, 21, 12, 0, 0, tzinfo=dt.timezone.utc)


class FakeClock:
    """A clock whose time passes only in `sleep` and `advance`, or by `look_s` at each look.

    `on_look` runs at the beginning of each look, and `on_sleep` at the end of each sleep.
    `set_by_s` is the number of seconds by which somebody, such as NTP, has changed the time of day.
    """

    def __init__(
        self,
        *,
        look_s: float = 0.0,
        on_look: Callable[[], object] = lambda: None,
        on_sleep: Callable[[], object] = lambda: None,
    ) -> None:
        self.elapsed_s = 0.0
        self.set_by_s = 0.0
        self.sleeps: list[float] = []
        self._look_s = look_s
        self._on_look = on_look
        self._on_sleep = on_sleep

    def monotonic(self) -> float:
        self._on_look()
        self.elapsed_s += self._look_s
        return self.elapsed_s

    def now(self) -> dt.datetime:
        return EPOCH + dt.timedelta(seconds=self.elapsed_s + self.set_by_s)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.elapsed_s += seconds
        self._on_sleep()

    def advance(self, seconds: float) -> None:
        self.elapsed_s += seconds


class YieldingClock(SystemClock):
    """The system's clock for waits on another thread of this process; each sleep lets threads run."""

    @override
    def sleep(self, seconds: float) -> None:
        os.sched_yield()


def in_turn(*actions: Callable[[], object]) -> Callable[[], None]:
    """Return a function whose n-th call runs the n-th action; later calls do nothing."""
    remaining = list(actions)

    def run_next() -> None:
        if remaining:
            remaining.pop(0)()

    return run_next
