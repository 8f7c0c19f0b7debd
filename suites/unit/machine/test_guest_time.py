"""Guest time excludes the time in which the host runs other work instead of the guest."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from harness.machine.guest_time import GUEST_LIMIT_TIMES, GuestClock, GuestDeadline
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

PID = 4711


class Host:
    """A host that runs the threads of one QEMU."""

    def __init__(self, folder: Path) -> None:
        self.processes = folder
        self.clock = FakeClock()

    def schedules(self, tid: int, *, ran_s: float = 0.0, waited_s: float = 0.0) -> None:
        """Set how long a thread has run, and has waited for a processor, since its start."""
        task = self.processes / str(PID) / "task" / str(tid)
        task.mkdir(parents=True, exist_ok=True)
        (task / "schedstat").write_text(f"{ran_s * 1e9:.0f} {waited_s * 1e9:.0f} 7\n")

    def guest(self) -> GuestClock:
        return GuestClock(PID, self.clock, processes=self.processes)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.schedules(1)
    host.schedules(2)
    return host


def test_guest_clock_excludes_time_in_which_the_host_does_not_run_the_machine(host: Host) -> None:
    guest = host.guest()
    began = guest.monotonic()

    host.clock.sleep(10)
    host.schedules(2, ran_s=4, waited_s=6)
    middle = guest.monotonic() - began
    host.clock.sleep(10)
    host.schedules(2, ran_s=9, waited_s=11)

    assert [middle, guest.monotonic() - began] == pytest.approx([4, 9])


def test_guest_clock_subtracts_only_the_longest_of_simultaneous_thread_waits(host: Host) -> None:
    guest = host.guest()
    began = guest.monotonic()

    host.clock.sleep(10)
    host.schedules(1, waited_s=8)
    host.schedules(2, waited_s=7)

    assert guest.monotonic() - began == pytest.approx(2)


def test_guest_clock_subtracts_a_wait_for_a_cpu_that_the_kernel_reports_late(
    host: Host,
) -> None:
    """The kernel reports a long wait only after it has ended."""
    guest = host.guest()
    began = guest.monotonic()
    for _ in range(9):
        host.clock.sleep(1)
        guest.monotonic()

    host.clock.sleep(1)
    host.schedules(1, waited_s=8)
    seen = guest.monotonic() - began
    host.clock.sleep(8)

    # The clock never goes back. Instead, it stops until the host's time has caught up.
    assert seen == pytest.approx(9)
    assert guest.monotonic() - began == pytest.approx(10)


def test_guest_clock_does_not_subtract_waits_before_the_measurement(host: Host) -> None:
    """Another thread, which waited longer before the measurement, does not change the result."""
    host.clock.sleep(100)
    host.schedules(1, waited_s=90)
    guest = host.guest()
    began = guest.monotonic()

    host.clock.sleep(10)
    host.schedules(2, waited_s=3)

    assert guest.monotonic() - began == pytest.approx(7)


def test_subtracted_time_never_exceeds_the_elapsed_time(host: Host) -> None:
    guest = host.guest()
    began = guest.monotonic()

    host.clock.sleep(2)
    host.schedules(3, waited_s=500)

    assert guest.monotonic() - began == pytest.approx(0)
    assert guest.time().kept_waiting_s == pytest.approx(2)


def test_guest_clock_runs_like_the_host_clock_if_schedstat_is_missing_or_invalid(
    tmp_path: Path,
) -> None:
    task = tmp_path / str(PID) / "task" / "1"
    for content in (None, "0", "x y z\n"):
        if content is not None:
            task.mkdir(parents=True, exist_ok=True)
            (task / "schedstat").write_text(content)
        clock = FakeClock()
        guest = GuestClock(PID, clock, processes=tmp_path)
        began = guest.monotonic()

        clock.sleep(10)

        assert guest.monotonic() - began == pytest.approx(10)


def test_guest_clock_runs_like_the_host_clock_after_the_machine_has_ended(host: Host) -> None:
    guest = host.guest()
    began = guest.monotonic()
    host.clock.sleep(10)
    host.schedules(1, waited_s=4)
    ended = guest.monotonic() - began

    shutil.rmtree(host.processes / str(PID))
    host.clock.sleep(10)

    assert [ended, guest.monotonic() - began] == pytest.approx([6, 16])


# -- deadlines ---------------------------------------------------------------------------------------


def test_deadline_passes_after_the_given_seconds_of_guest_time(host: Host) -> None:
    deadline = GuestDeadline.of(host.guest(), 10)

    host.clock.sleep(30)
    host.schedules(1, waited_s=21)
    assert not deadline.has_passed()
    assert deadline.remaining_s() == pytest.approx(1)
    host.clock.sleep(1)

    assert deadline.has_passed()


def test_timeout_error_has_the_run_time_and_the_wait_time_of_the_guest(
    host: Host,
) -> None:
    guest = host.guest()
    host.clock.sleep(200)
    host.schedules(1, ran_s=100, waited_s=50)
    deadline = GuestDeadline.of(guest, 10)
    host.clock.sleep(30)
    host.schedules(1, ran_s=108, waited_s=70)

    with pytest.raises(WaitTimeoutError) as error:
        wait_for("the end", lambda: Observation[int](None, "a beginning"), deadline)

    seconds = re.findall(r"(\d+) s", str(error.value).partition("last seen: a beginning.")[2])
    assert seconds == ["8", "20"]


def test_wait_for_a_silent_guest_ends_at_the_limit(host: Host) -> None:
    deadline = GuestDeadline.of(host.guest(), 60, follows_progress=True)

    host.clock.sleep(59)
    assert not deadline.has_passed()
    host.clock.sleep(1)

    assert deadline.has_passed()


def test_deadline_passes_half_the_limit_after_the_last_line_of_the_guest(host: Host) -> None:
    guest = host.guest()
    deadline = GuestDeadline.of(guest, 60, follows_progress=True)
    host.clock.sleep(50)
    guest.hear(b"compiling\n")
    host.clock.sleep(30)
    guest.hear(b"...")

    assert deadline.has_passed()


def test_printed_line_extends_the_deadline_by_the_guest_clock(host: Host) -> None:
    """The clock of the host would include the time in which the guest did not run."""
    guest = host.guest()
    began = guest.last_progress
    deadline = GuestDeadline.of(guest, 60, follows_progress=True)
    host.clock.sleep(100)
    host.schedules(1, waited_s=45)
    guest.hear(b"compiling\n")
    heard = guest.last_progress - began
    host.clock.sleep(29)

    assert heard == pytest.approx(55)
    assert deadline.remaining_s() == pytest.approx(1)


def test_wait_for_a_guest_that_never_stops_printing_ends_at_three_times_the_limit(
    host: Host,
) -> None:
    guest = host.guest()
    deadline = GuestDeadline.of(guest, 60, follows_progress=True)
    for seconds in (55, 29, 29, 29, 29, 8):
        host.clock.sleep(seconds)
        guest.hear(b"again\n")
        assert not deadline.has_passed()

    host.clock.sleep(1)
    guest.hear(b"again\n")

    assert deadline.has_passed()


def test_deadline_that_ignores_progress_is_not_extended(host: Host) -> None:
    guest = host.guest()
    deadline = GuestDeadline.of(guest, 60)
    host.clock.sleep(59)
    guest.hear(b"compiling\n")
    host.clock.sleep(1)

    assert deadline.has_passed()


def test_stretch_factor_is_the_elapsed_time_divided_by_the_run_time_of_the_machine(
    host: Host,
) -> None:
    guest = host.guest()
    assert guest.stretch() == 1.0

    host.clock.sleep(100)
    assert guest.stretch() == 1.0
    host.schedules(2, ran_s=25, waited_s=75)

    assert guest.stretch() == 4.0


def test_stretch_factor_has_an_upper_bound(host: Host) -> None:
    """Two threads that wait at the same time, but are seen in turn, seem to wait all the time."""
    guest = host.guest()
    for turn in range(1, 11):
        host.clock.sleep(1)
        host.schedules(1 + turn % 2, waited_s=turn * 1.2)
        guest.monotonic()
    host.clock.sleep(1e-6)

    assert guest.stretch() == GUEST_LIMIT_TIMES


def test_host_is_called_busy_if_the_machine_waited_for_half_of_its_time(host: Host) -> None:
    guest = host.guest()

    host.clock.sleep(100)
    host.schedules(2, ran_s=51, waited_s=49)
    assert guest.busy_host() == ""
    host.schedules(2, ran_s=51, waited_s=50)

    assert "kept the machine waiting for 50 of 100 s" in guest.busy_host()
