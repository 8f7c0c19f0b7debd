"""The log of QEMU's events: waits for events, and errors that the events explain."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.channels.event_log import EventLog, QmpEvent, disk_failure, names
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable

#: A woken thread checks its condition within this time, even on a busy host.
_LOOK_S = 20.0


def an_event(name: str, **data: object) -> QmpEvent:
    return QmpEvent(name=name, at_s=0.0, data=data)


@pytest.fixture
def log() -> EventLog:
    return EventLog("node", advice="Look there.")


def test_wait_ends_at_the_first_matching_event_from_the_start_position(log: EventLog) -> None:
    for number in range(3):
        log.add(an_event("STOP", number=number))

    event = log.wait_for("a stop", names("RESUME", "STOP"), Deadline.after(0.0), since=1)

    assert event == log.events[1]


def test_error_of_a_wait_shows_the_events_so_far_if_qemu_has_exited() -> None:
    for why, words in (("", "ended during"), ("crashed", r"ended \(crashed\)")):
        log = EventLog("node", advice="Look there.")
        log.add(an_event("FIRST"))
        for _ in range(50):
            log.add(an_event("RESET"))
        log.end(why)
        log.end("later")

        with pytest.raises(
            HarnessError,
            match=rf"'node' {words}.* its stop; events seen: 1 earlier, RESET(, RESET)+\. Look there",
        ):
            log.wait_for("its stop", names("STOP"), Deadline.after(60.0))


def test_wait_reports_a_lost_connection_instead_of_the_end_of_the_event_log(log: EventLog) -> None:
    log.end()

    with pytest.raises(HarnessError, match="the way is lost; no event"):
        log.wait_for(
            "its stop",
            names("STOP"),
            Deadline.after(60.0),
            loss=lambda seen: HarnessError(f"the way is lost; {seen}"),
        )


@pytest.mark.parametrize("name", ["add", "wake", "end"])
def test_each_wait_checks_its_condition_again_after_an_event_or_a_wake_up_or_the_end_of_the_log(
    log: EventLog, name: str
) -> None:
    looks = threading.Semaphore(0)

    def look(_seen: str) -> None:
        looks.release()

    change: Callable[[], None] = {
        "add": lambda: log.add(an_event("RESET")),
        "wake": log.wake,
        "end": log.end,
    }[name]
    with ThreadPoolExecutor(2) as pool:
        deadline = Deadline.after(3 * _LOOK_S)
        waiters = [
            pool.submit(log.wait_for, "its stop", names("STOP"), deadline, loss=look)
            for _ in range(2)
        ]
        assert all(looks.acquire(timeout=_LOOK_S) for _ in waiters)
        change()
        has_looked = [looks.acquire(timeout=_LOOK_S) for _ in waiters]
        log.end()
        log.wake()

    assert has_looked == [True, True]
    assert all(isinstance(waiter.exception(), HarnessError) for waiter in waiters)


def test_error_for_a_failed_disk_write_has_the_reason_and_the_folder() -> None:
    events = [an_event("RESUME"), an_event("BLOCK_IO_ERROR", reason="No space left on device")]

    assert disk_failure(events, Path("/runs/node")) == (
        "QEMU could not write its disk (No space left on device); free space on the file system "
        "of '/runs/node'"
    )
    assert disk_failure(events[:1], Path("/runs/node")) is None
    assert "(no reason given)" in str(disk_failure([an_event("BLOCK_IO_ERROR")], Path("/runs")))
