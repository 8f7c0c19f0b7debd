"""A clock for tests: moves only when told, or by one second for each look."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass


@dataclass
class TickingClock:
    """Counts seconds from 0; each look first adds `step_s`."""

    seconds: float = 0.0
    step_s: float = 1.0

    def monotonic(self) -> float:
        self.seconds += self.step_s
        return self.seconds

    def now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.seconds, tz=dt.timezone.utc)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
