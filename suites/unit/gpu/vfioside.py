"""A client that plays QEMU's part of the vfio-user protocol over the server's socket."""

from __future__ import annotations

import array
import os
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.gpu.vfio_user import VfioUserServer

#: A lost answer fails the test instead of hanging it.
_PATIENCE_S = 10.0
_HEADER = struct.Struct("<HHIII")

CONFIG = 7


class Reply(NamedTuple):
    number: int
    command: int
    flags: int
    error: int
    payload: bytes


def message(
    command: int, payload: bytes = b"", *, number: int = 1, flags: int = 0, size: int | None = None
) -> bytes:
    """Return one message as QEMU writes it; `size` makes its header lie."""
    length = _HEADER.size + len(payload) if size is None else size
    return _HEADER.pack(number, command, length, flags, 0) + payload


def read_message(region: int, offset: int, count: int) -> bytes:
    return message(9, struct.pack("<QII", offset, region, count))


def write_message(region: int, offset: int, data: bytes, *, flags: int = 0) -> bytes:
    return message(10, struct.pack("<QII", offset, region, len(data)) + data, flags=flags)


class QemuSide:
    """QEMU's end of the socket."""

    def __init__(self, server: VfioUserServer) -> None:
        folder = os.open(server.socket_path.parent, os.O_PATH)
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_PATIENCE_S)
        try:
            self.sock.connect(f"/proc/self/fd/{folder}/{server.socket_path.name}")
        finally:
            os.close(folder)

    def close(self) -> None:
        self.sock.close()

    def post(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send without waiting."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([data], rights)

    def answer(self) -> Reply:
        """Receive one reply; EOFError when the server has hung up."""
        number, command, size, flags, error = _HEADER.unpack(self._exactly(_HEADER.size))
        return Reply(number, command, flags, error, self._exactly(size - _HEADER.size))

    def _exactly(self, size: int) -> bytes:
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

    def ask(self, data: bytes) -> Reply:
        self.post(data)
        return self.answer()

    def read(self, region: int, offset: int, count: int = 4) -> int:
        """Return what a region holds; the answer repeats the question."""
        reply = self.ask(read_message(region, offset, count))
        assert reply.error == 0, os.strerror(reply.error)
        assert reply.payload[:16] == struct.pack("<QII", offset, region, count)
        assert len(reply.payload) == 16 + count
        return int.from_bytes(reply.payload[16:], "little")

    def write(self, region: int, offset: int, value: int, count: int = 4) -> None:
        reply = self.ask(write_message(region, offset, value.to_bytes(count, "little")))
        assert reply.error == 0, os.strerror(reply.error)

    def has_been_hung_up_on(self) -> bool:
        """Return whether nothing but the end of the stream is left to receive."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True
