"""The client's end of a socket to a device server, for any protocol on the socket."""

from __future__ import annotations

import array
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: If an answer is lost, the test fails after this time and does not hang.
_PATIENCE_S = 10.0


class SocketSide:
    """QEMU's end of a socket: sends data with descriptors, and detects a closed connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(_PATIENCE_S)

    def close(self) -> None:
        self.sock.close()

    def post(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send data and descriptors, and do not wait for an answer."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([data], rights)

    def receive(self, size: int) -> bytes:
        """Receive `size` bytes; raises EOFError if the server closes the connection earlier."""
        data = bytearray()
        while len(data) < size:
            try:
                more = self.sock.recv(size - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise EOFError(f"the server hung up after {len(data)} bytes")
            data += more
        return bytes(data)

    def has_been_hung_up_on(self) -> bool:
        """Return whether the stream has ended; wait until a byte or the end arrives."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


def open_descriptors() -> set[str]:
    """Return the numbers of this process's open files, so that a test detects leaked files."""
    return {entry.name for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}
