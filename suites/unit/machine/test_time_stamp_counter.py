"""The frequency of the host's time stamp counter is measured, whatever interrupts the measurement."""

from __future__ import annotations

import itertools

import pytest

from harness.machine.time_stamp_counter import measure_khz
from suites.fakes.clock import FakeClock


class Host:
    """A host whose two clocks advance with each look, and with a sleep."""

    def __init__(self, *, mhz: float, interrupted_ns: int = 0) -> None:
        self.clock = FakeClock()
        self._mhz = mhz
        self._interrupted_ns = interrupted_ns
        self._now_ns = 0
        self._looks = itertools.count()

    def _advance(self) -> int:
        self.ns = self._now_ns + round(self.clock.elapsed_s * 1e9)
        # Most looks are interrupted, now before the counter is read and now after it.
        self._now_ns += 40 if next(self._looks) % 7 else 40 + self._interrupted_ns
        return self.ns

    def nanoseconds(self) -> int:
        return self._advance()

    def counter(self) -> int:
        return round(self._advance() * self._mhz / 1000)


@pytest.mark.parametrize(
    ("mhz", "khz"), [(2596.15, 2_596_000), (3000.0, 3_000_000), (999.6, 1_000_000)]
)
@pytest.mark.parametrize("interrupted_ns", [0, 90_000])
def test_frequency_is_found_in_whole_mhz(mhz: float, khz: int, interrupted_ns: int) -> None:
    host = Host(mhz=mhz, interrupted_ns=interrupted_ns)

    assert measure_khz(host.counter, host.nanoseconds, host.clock) == khz


def test_counter_that_stands_still_has_no_frequency() -> None:
    host = Host(mhz=1)

    assert measure_khz(lambda: 7, host.nanoseconds, host.clock) is None


def test_clock_that_stands_still_measures_nothing() -> None:
    host = Host(mhz=2000)

    assert measure_khz(host.counter, lambda: 0, host.clock) is None
