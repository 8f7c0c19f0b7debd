"""Log lines and event files."""

from __future__ import annotations

import datetime as dt
import errno
import re
from typing import TYPE_CHECKING

from harness.provisioning.journal import EVENTS_DIRECTORY, LOG_PATH, Journal
from harness.provisioning.node_files import NodeFiles
from suites.fakes.clock import EPOCH, FakeClock

from .fakes import read_events

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_journal_line_is_written_to_the_console_and_the_log(tmp_path: Path) -> None:
    console: list[str] = []
    journal = Journal(NodeFiles(tmp_path), FakeClock(), console.append)

    journal.line("one")
    journal.line("two")

    assert console == ["one", "two"]
    assert NodeFiles(tmp_path).read(LOG_PATH) == "one\ntwo\n"
    assert LOG_PATH == "/var/log/azure/cluster-provision.log"


def test_event_has_the_fields_that_the_guest_agent_reads(tmp_path: Path) -> None:
    clock = FakeClock()
    clock.advance(61.0625)
    started = EPOCH + dt.timedelta(milliseconds=1999, microseconds=500)

    Journal(NodeFiles(tmp_path), clock, lambda _: None).event("AKS.CSE.x", "ctr version", started)

    assert read_events(NodeFiles(tmp_path)) == [
        {
            "Timestamp": "2026-08-21 12:00:01.999",
            "OperationId": "2026-08-21 12:01:01.062",
            "Version": "1.23",
            "TaskName": "AKS.CSE.x",
            "EventLevel": "Informational",
            "Message": "Completed: ctr version",
            "EventPid": "0",
            "EventTid": "0",
        }
    ]
    (name,) = NodeFiles(tmp_path).names(EVENTS_DIRECTORY)
    assert name == "1787313601999.json"


def test_events_in_one_millisecond_get_different_numeric_file_names(tmp_path: Path) -> None:
    journal = Journal(NodeFiles(tmp_path), FakeClock(), lambda _: None)

    for task in ("a", "b", "c"):
        journal.event(task, "x", EPOCH)

    names = NodeFiles(tmp_path).names(EVENTS_DIRECTORY)
    first = int(EPOCH.timestamp() * 1000)
    assert [int(name[:-5]) for name in names] == [first, first + 1, first + 2]
    assert all(re.fullmatch(r"\d+\.json", name) for name in names)
    assert [event["TaskName"] for event in read_events(NodeFiles(tmp_path))] == ["a", "b", "c"]


def test_failed_write_to_the_console_is_ignored(tmp_path: Path) -> None:
    def refuse(_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Journal(NodeFiles(tmp_path), FakeClock(), refuse).line("one")

    assert NodeFiles(tmp_path).read(LOG_PATH) == "one\n"


def test_failed_write_of_the_log_or_an_event_is_reported_on_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(NodeFiles, "append", refuse)
    monkeypatch.setattr(NodeFiles, "create", refuse)
    console: list[str] = []
    journal = Journal(NodeFiles(tmp_path), FakeClock(), console.append)

    journal.line("one")
    journal.event("AKS.CSE.x", "y", EPOCH)

    why = "cannot be written: [Errno 28] No space left on device."
    assert console == ["one", f"The log '{LOG_PATH}' {why}", f"The event 'AKS.CSE.x' {why}"]
