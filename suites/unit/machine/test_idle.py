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


def test_guest_that_is_never_idle_is_reported_with_its_share() -> None:
    looks = itertools.count(100.0, 0.75)

    with pytest.raises(
        HarnessError, match=r"'node' to become idle.*75% of a core.*of an idle guest"
    ):
        wait_until_idle("node", lambda: next(looks), Deadline.after(LONG_S, FakeClock()))
