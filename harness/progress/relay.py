"""Sends events from xdist workers to the process that has the terminal.

Each event is a datagram. The sender drops an event whose datagram can't be sent within a second.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING

from harness.foreign_json import parse_json
from harness.progress import ProgressEvent, Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MESSAGE_BYTES = 16384
#: The maximum length of a message, in characters. A message of this length fits into a datagram even
#: if JSON escapes each character. Only messages with console output are longer.
_LONGEST = 2000
_SEND_S = 1.0
_CLOSE_S = 5.0


class Sender:
    """Sends the events of one worker to the socket `place`."""

    def __init__(self, place: str, worker: str) -> None:
        self._place = place
        self._worker = worker
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # The kernel's queue holds only ten datagrams, from all workers, so a send may block.
        self._socket.settimeout(_SEND_S)

    def __call__(self, event: ProgressEvent) -> None:
        fields = {**asdict(event), "stage": event.stage.value, "worker": self._worker}
        fields["message"] = event.message[:_LONGEST]
        with contextlib.suppress(OSError):
            self._socket.sendto(json.dumps(fields).encode(), self._place)

    def close(self) -> None:
        self._socket.close()


class Receiver:
    """Receives datagrams on a socket in `folder`, in a thread, until `close` is called.

    `take` is called with each event and the name of the worker that sent the event.

    Raises OSError if the socket can't be made, for example if the path of the folder is too long.
    """

    def __init__(self, folder: Path, take: Callable[[ProgressEvent, str], None]) -> None:
        self.place = str(folder / "progress")
        self._take = take
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(self.place)
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._receive, name="progress", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while content := self._socket.recv(_MESSAGE_BYTES):
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                fields = parse_json(content)
                worker = str(fields.pop("worker"))
                stage = Stage(fields.pop("stage"))
                self._take(ProgressEvent(stage=stage, **fields), worker)

    def close(self) -> None:
        """End the thread once it has read all datagrams that were sent before this call."""
        with (
            contextlib.suppress(OSError),
            contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as last,
        ):
            last.sendto(b"", self.place)
        self._thread.join(_CLOSE_S)
        self._socket.close()
