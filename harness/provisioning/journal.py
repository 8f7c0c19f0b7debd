"""What a run leaves to read: log lines and event files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from .root import Root
    from .wait import Clock

LOG_PATH = "/var/log/azure/cluster-provision.log"
EVENTS_DIRECTORY = "/var/log/azure/Microsoft.Azure.Extensions.CustomScript/events"
EVENT_VERSION = "1.23"


class Journal:
    """Writes log lines and events.

    A disk that takes neither is no reason to leave a node without its driver, so what cannot be
    written is said on the console and not raised.
    """

    def __init__(self, root: Root, clock: Clock, console: Callable[[str], None]) -> None:
        self._root = root
        self._clock = clock
        self._console = console

    def line(self, text: str) -> None:
        """Say one line on the console and in the log."""
        self._console(text)
        try:
            self._root.append(LOG_PATH, f"{text}\n")
        except OSError as error:
            self._console(f"The log '{LOG_PATH}' cannot be written: {error}.")

    def event(self, task: str, command: str, started: dt.datetime) -> None:
        """Leave one event file for work that ends now.

        The name is the start in milliseconds, and one more until it is free: nested and parallel
        work often starts in one millisecond, and an event that overwrites another is lost. The
        guest agent reads only names made of digits.
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
            while not self._root.create(f"{EVENTS_DIRECTORY}/{milliseconds}.json", text):
                milliseconds += 1
        except OSError as error:
            self._console(f"The event '{task}' cannot be written: {error}.")


def _stamp(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
