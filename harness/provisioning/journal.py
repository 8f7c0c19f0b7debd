"""The log lines and event files of a run."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from .node_files import NodeFiles
    from .wait import Clock

LOG_PATH = "/var/log/azure/cluster-provision.log"
EVENTS_DIRECTORY = "/var/log/azure/Microsoft.Azure.Extensions.CustomScript/events"
EVENT_VERSION = "1.23"


class Journal:
    """Writes log lines and events.

    A full disk must not leave a node without its driver, so a write error is printed on the
    console, and no exception is raised. Errors of the console itself are ignored.
    """

    def __init__(self, files: NodeFiles, clock: Clock, console: Callable[[str], None]) -> None:
        self._files = files
        self._clock = clock
        self._write_console = console

    def line(self, text: str) -> None:
        """Write one line to the console and to the log."""
        self._console(text)
        try:
            self._files.append(LOG_PATH, f"{text}\n")
        except OSError as error:
            self._console(f"The log '{LOG_PATH}' cannot be written: {error}.")

    def _console(self, text: str) -> None:
        # The console may be a file on the full disk, or a pipe whose reader has ended.
        with contextlib.suppress(OSError):
            self._write_console(text)

    def event(self, task: str, command: str, started: dt.datetime) -> None:
        """Write the event file of the work `task`, which ends now.

        The name of the event file is the start time in milliseconds. If the name is in use, the
        number is increased, because nested and parallel work often starts in the same millisecond.
        The guest agent reads only event files whose names consist of digits.
        """
        ended = self._clock.now()
        text = json.dumps(
            {
                "Timestamp": _stamp(started),
                "OperationId": _stamp(ended),
                "Version": EVENT_VERSION,
                "TaskName": task,
                "EventLevel": "Informational",
                "Message": f"Completed: {command}",
                "EventPid": "0",
                "EventTid": "0",
            }
        )
        milliseconds = int(started.timestamp() * 1000)
        try:
            while not self._files.create(f"{EVENTS_DIRECTORY}/{milliseconds}.json", text):
                milliseconds += 1
        except OSError as error:
            self._console(f"The event '{task}' cannot be written: {error}.")


def _stamp(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
