"""QEMU's end of a QMP socket: sends a greeting, scripted answers and events, and hangs up."""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from typing_extensions import Self

GREETING: Mapping[str, object] = {
    "QMP": {
        "version": {"qemu": {"major": 7, "minor": 2, "micro": 15}, "package": ""},
        "capabilities": [],
    }
}
_JOIN_S = 5.0


class FakeQemu:
    """Speaks the part of QMP that a session needs, and answers each command from a script.

    `silent` names commands that never get an answer. The command "quit" ends the connection.
    `descriptors` has the device and inode of each file whose descriptor came with a command.
    """

    def __init__(
        self,
        answers: Mapping[str, Mapping[str, object]] | None = None,
        *,
        silent: frozenset[str] = frozenset(),
        greets: bool = True,
    ) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.commands: list[Mapping[str, object]] = []
        self.descriptors: list[tuple[int, int]] = []
        self._answers = {"qmp_capabilities": {"return": {}}, **(answers or {})}
        self._silent = silent
        self._greets = greets
        self._thread = threading.Thread(target=self._serve, name="fake-qemu")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()
        self._thread.join(_JOIN_S)
        self._theirs.close()
        self.ours.close()

    def send_event(self, name: str, data: Mapping[str, object] | None = None) -> None:
        stamp = {"seconds": 1700000000, "microseconds": 500000}
        # QEMU also omits empty data.
        told = {} if data is None else {"data": dict(data)}
        self._send({"event": name, **told, "timestamp": stamp})

    def hang_up(self) -> None:
        """Close the connection, as QEMU does when it ends."""
        try:
            self._theirs.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def _send(self, message: Mapping[str, object]) -> None:
        self._theirs.sendall(json.dumps(message).encode() + b"\r\n")

    def _serve(self) -> None:
        if self._greets:
            self._send(GREETING)
        for command in self._received():
            self.commands.append(command)
            name = str(command["execute"])
            if name == "quit":
                self.hang_up()
                return
            if name not in self._silent:
                echoed = {"id": command["id"]} if "id" in command else {}
                self._send({**self._answers[name], **echoed})

    def _received(self) -> Iterator[Mapping[str, object]]:
        """Yield commands. Like QEMU, split them at the end of a JSON text and not at line breaks."""
        text, decoder = "", json.JSONDecoder()
        while chunk := self._receive():
            text = (text + chunk.decode()).lstrip()
            while text:
                try:
                    command, end = decoder.raw_decode(text)
                except ValueError:
                    break
                text = text[end:].lstrip()
                yield command

    def _receive(self) -> bytes:
        """Receive bytes, and record the files of the descriptors that came with the bytes."""
        chunk, descriptors, _, _ = socket.recv_fds(self._theirs, 65536, 1)
        for descriptor in descriptors:
            status = os.fstat(descriptor)
            self.descriptors.append((status.st_dev, status.st_ino))
            os.close(descriptor)
        return chunk
