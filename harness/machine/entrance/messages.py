"""Messages on a machine's entrance: a kind (one byte), a length (four bytes), and the content.

A client sends one request and then input. The process that runs the machine sends output, and then
the end or a refusal.
"""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.foreign_json import parse_json_object

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

_HEADER = struct.Struct(">BI")
_MOST_BYTES = 1 << 20
_RECEIVE_BYTES = 65536


class Kind(enum.IntEnum):
    """The kind of a message. The client's kinds come first."""

    REQUEST = 1
    INPUT = 2
    INPUT_END = 3
    RESIZE = 4
    OUTPUT = 16
    ERRORS = 17
    END = 18
    REFUSAL = 19


class Verb(str, enum.Enum):
    """A client's request."""

    RUN = "run"
    CONSOLE = "console"
    SSH = "ssh"


@dataclass(frozen=True, kw_only=True)
class TerminalSize:
    """The size of a terminal, in characters."""

    rows: int
    columns: int


@dataclass(frozen=True, kw_only=True)
class Request:
    """A client's request: a verb, and a command with the size of its terminal.

    Without `argv`, the command is a shell.
    """

    verb: Verb
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    terminal: TerminalSize | None = None

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Request:
        """Parse a request. Raises ValueError, KeyError or TypeError for other content."""
        fields = parse_json_object(content)
        size, env = fields["terminal"], fields["env"]
        if not isinstance(env, dict):
            raise TypeError("the environment of a command is not a JSON object")
        return cls(
            verb=Verb(fields["verb"]),
            argv=tuple(str(word) for word in fields["argv"]),
            env={str(key): str(value) for key, value in env.items()},
            terminal=None if size is None else size_from(size),
        )


def size_from(fields: Mapping[str, object]) -> TerminalSize:
    """Return a size from parsed JSON. Raises KeyError, TypeError or ValueError for other JSON."""
    return TerminalSize(rows=int(str(fields["rows"])), columns=int(str(fields["columns"])))


def send(sock: socket.socket, kind: Kind, content: bytes = b"") -> None:
    """Send one message. Raises OSError if the peer has closed the socket."""
    sock.sendall(_HEADER.pack(kind, len(content)) + content)


class Receiver:
    """Receives messages from a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self._left: list[tuple[Kind, bytes]] = []

    def receive(self) -> list[tuple[Kind, bytes]] | None:
        """Return the messages that the next bytes complete, or None if the socket is closed.

        Raises HarnessError for bytes that are not a message.
        """
        if self._left:
            left, self._left = self._left, []
            return left
        try:
            chunk = self._sock.recv(_RECEIVE_BYTES)
        except ConnectionError:
            return None
        if not chunk:
            return None
        self._buffer += chunk
        return self._completed()

    def next(self) -> tuple[Kind, bytes] | None:
        """Return the next message, or None if the socket is closed."""
        while True:
            messages = self.receive()
            if messages is None:
                return None
            if messages:
                first, *self._left = messages
                return first

    def _completed(self) -> list[tuple[Kind, bytes]]:
        messages: list[tuple[Kind, bytes]] = []
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            if length > _MOST_BYTES or kind not in set(Kind):
                raise HarnessError(
                    "The machine's socket sent something that is not a message; perhaps another "
                    "version of the harness runs the machine."
                )
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append((Kind(kind), bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return messages
