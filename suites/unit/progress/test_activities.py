"""Reports about a machine that is busy for a long time."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

from harness.progress import Stage, clock_time, deadline_words
from harness.progress.activities import Activities, MachineActivity, watched
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.progress import ProgressEvent


class _Told:
    """A machine, and all events that it reported."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.events: list[ProgressEvent] = []
        self.machine = MachineActivity("node-1", self.events.append, self.clock)

    @property
    def said(self) -> list[tuple[Stage, str]]:
        return [(event.stage, event.message) for event in self.events]


@pytest.fixture
def told() -> _Told:
    return _Told()


@contextlib.contextmanager
def _later(told: _Told, what: str) -> Iterator[None]:
    """Begin an activity some seconds after the outer activity."""
    told.clock.sleep(7)
    with told.machine.during(what):
        yield


def test_activity_of_a_machine_is_reported_with_its_deadline(
    told: _Told,
) -> None:
    deadline = Deadline.after(30, told.clock)
    with (
        told.machine.during("runs for a test", stage=Stage.RUNS),
        told.machine.during("waits for cloud-init", deadline),
    ):
        pass

    assert told.said == [
        (Stage.RUNS, "runs for a test"),
        (Stage.BUSY, "waits for cloud-init"),
        (Stage.RUNS, "runs for a test"),
        (Stage.ENDED, "has ended"),
    ]
    now = told.clock.now().timestamp()
    assert [event.until for event in told.events] == [None, pytest.approx(now + 30), None, None]


def test_machine_whose_activity_failed_is_reported_as_ended(told: _Told) -> None:
    with pytest.raises(ValueError, match="x"), told.machine.during("starts"):
        raise ValueError("x")

    assert told.said[-1] == (Stage.ENDED, "has ended")


def test_note_replaces_the_activity_and_keeps_its_stage_and_deadline(
    told: _Told,
) -> None:
    with told.machine.during("runs", Deadline.after(30, told.clock), stage=Stage.RUNS):
        told.machine.note("runs, step 2")

    assert told.said[1] == (Stage.RUNS, "runs, step 2")
    assert told.events[1].until == told.events[0].until


def test_new_console_output_is_reported_each_minute_of_a_long_wait(told: _Told) -> None:
    with told.machine.during("runs", stage=Stage.RUNS), _later(told, "waits for cloud-init"):
        told.machine.hear(b"\x1b[32mStarted\x1b[0m one\r\nStarted two\r\n")
        told.machine.report_if_due()
        told.clock.sleep(60)
        told.machine.report_if_due()
        told.machine.report_if_due()
        told.machine.hear(b"Started three\n")
        for _ in range(2):
            told.clock.sleep(60)
            told.machine.report_if_due()

    console = [event.message for event in told.events if event.stage is Stage.CONSOLE]
    assert console == [
        (
            "waits for cloud-init for 60 s; its console has printed 2 lines since, the last of them:\n"
            "  | Started one\n"
            "  | Started two"
        ),
        (
            "waits for cloud-init for 120 s; its console has printed 1 lines since, the last of them:\n"
            "  | Started three"
        ),
        "waits for cloud-init for 180 s; its console has printed nothing since",
    ]


def test_terminal_controls_of_a_guest_are_not_shown(told: _Told) -> None:
    with told.machine.during("waits"):
        told.machine.note("step \x1b[2J\x9b1mone\x07")
        told.machine.hear("\x1b]0;title\x07a\x9bHb\r10 %\r20 %\n".encode())
        told.clock.sleep(60)
        told.machine.report_if_due()

    assert told.events[1].message == "step 1mone"
    assert told.events[2].message.splitlines()[1:] == ["  | 0;titleaHb", "  | 10 %", "  | 20 %"]


def test_console_output_is_reported_one_minute_after_the_last_change_of_activity(
    told: _Told,
) -> None:
    with told.machine.during("waits"):
        told.clock.sleep(50)
        told.machine.note("waits, step 2")
        told.clock.sleep(50)
        told.machine.report_if_due()
        assert Stage.CONSOLE not in [event.stage for event in told.events]

        told.clock.sleep(10)
        told.machine.report_if_due()

    assert "waits, step 2 for 60 s" in told.events[-2].message


def test_end_of_a_wait_restarts_the_one_minute_timer_of_the_console_report(told: _Told) -> None:
    with told.machine.during("runs for a test", stage=Stage.RUNS):
        with told.machine.during("waits"):
            told.clock.sleep(59)
        told.clock.sleep(59)
        told.machine.report_if_due()
        assert Stage.CONSOLE not in [event.stage for event in told.events]

        told.clock.sleep(1)
        told.machine.report_if_due()

    assert "runs for a test for 119 s" in told.events[-2].message


def test_times_are_shown_in_the_local_time_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "EST5")
        time.tzset()
        said = clock_time(0.0), deadline_words(3600.0, 0.0), deadline_words(None, 0.0)
    time.tzset()

    assert said == ("19:00:00", ", until 20:00:00 at most", "")


def test_report_of_a_flooding_console_has_only_its_last_lines_and_they_are_truncated(
    told: _Told,
) -> None:
    with told.machine.during("waits"):
        for number in range(1000):
            told.machine.hear(b"%d " % number + b"x" * 300 + b"\n")
        told.clock.sleep(60)
        told.machine.report_if_due()

    message = told.events[-2].message
    assert "has printed 1000 lines since" in message
    assert [line[:7] for line in message.splitlines()[1:]] == [
        f"  | {number}" for number in range(995, 1000)
    ]
    assert max(map(len, message.splitlines())) <= 170


def test_reporting_thread_ends_if_the_activity_of_the_machine_raises_an_error() -> None:
    machine = Activities(lambda _event: None).of("node-1")

    threads: list[threading.Thread] = []

    def fail() -> None:
        with watched(machine), machine.during("starts"):
            threads.extend(each for each in threading.enumerate() if each.name == "activity")
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    (thread,) = threads

    assert not thread.is_alive()
