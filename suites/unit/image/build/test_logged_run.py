"""How long a command of a build may take."""

from __future__ import annotations

from harness.image.build.logged_run import OutputDeadline
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock


def test_each_printed_line_restarts_the_time_limit_of_a_build() -> None:
    clock = FakeClock()
    deadline = OutputDeadline.of(Deadline.after(900, clock))

    clock.sleep(800)
    deadline.hear()
    clock.sleep(800)
    assert not deadline.has_passed()
    clock.sleep(101)

    assert deadline.has_passed()


def test_build_that_never_stops_printing_ends_at_four_times_its_time_limit() -> None:
    clock = FakeClock()
    deadline = OutputDeadline.of(Deadline.after(900, clock))

    for _ in range(4 * 9):
        assert not deadline.has_passed()
        clock.sleep(100)
        deadline.hear()

    assert deadline.has_passed()
