"""A guest that becomes idle, and one that never does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.idle import wait_until_idle
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_S = 20.0


def used(*shares: float) -> Iterator[float]:
    """Yield the processor time at each look of a guest that takes such shares of a core."""
    return itertools.accumulate((100.0, *shares))


def test_guest_rests_after_five_quiet_looks_in_a_row() -> None:
    looks = used(0.9, 0.01, 0.01, 0.5, 0.01, 0.02, 0.01, 0.0, 0.05, 9.0)

    wait_until_idle("node", lambda: next(looks), Deadline.after(LONG_S, FakeClock()))

    assert list(looks) == [pytest.approx(110.51)]


def test_guest_that_rests_all_the_time_is_looked_at_six_times_a_second_apart() -> None:
    """The first look has nothing to compare with, and a twentieth of a core is rest."""
    clock = FakeClock()
    looks = iter([0.0, 0.05, 0.05, 0.05, 0.05, 0.05, 9.0])

    wait_until_idle("node", lambda: next(looks), Deadline.after(LONG_S, clock))

    assert list(looks) == [9.0]
    assert clock.sleeps == 5 * [1.0]


def test_guest_that_is_never_idle_is_reported_with_its_share() -> None:
    looks = itertools.count(100.0, 0.75)

    with pytest.raises(
        HarnessError,
        match=(
            r"^Waited 20\.0 s for machine 'node' to become idle; last seen: 75% of a core in use\. "
            r"A checkpoint is taken of an idle guest; end what keeps it busy\.$"
        ),
    ):
        wait_until_idle("node", lambda: next(looks), Deadline.after(LONG_S, FakeClock()))
