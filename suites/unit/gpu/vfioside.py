"""A client that plays QEMU's part of the vfio-user protocol over the server's socket."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from suites.unit.gpu.socketside import SocketSide

if TYPE_CHECKING:
    from harness.gpu.vfio_user import VfioUserServer

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
    """Return one message as QEMU writes it, or with the wrong `size` in its header."""
    length = _HEADER.size + len(payload) if size is None else size
    return _HEADER.pack(number, command, length, flags, 0) + payload


def read_message(region: int, offset: int, count: int) -> bytes:
    return message(9, struct.pack("<QII", offset, region, count))


def write_message(region: int, offset: int, data: bytes, *, flags: int = 0) -> bytes:
    return message(10, struct.pack("<QII", offset, region, len(data)) + data, flags=flags)


def writes_message(*writes: tuple[int, int, bytes], count: int | None = None) -> bytes:
    """Return one message with several writes, or with the wrong number `count` of writes."""
    each = b"".join(
        struct.pack("<QII", offset, region, len(data)) + data.ljust(8, b"\0")
        for region, offset, data in writes
    )
    return message(15, struct.pack("<Q", len(writes) if count is None else count) + each)


class QemuSide(SocketSide):
    """QEMU's end of the socket."""

    def __init__(self, server: VfioUserServer) -> None:
        super().__init__(socket.socket(socket.AF_UNIX))
        folder = os.open(server.socket_path.parent, os.O_PATH)
        try:
            self.sock.connect(f"/proc/self/fd/{folder}/{server.socket_path.name}")
        finally:
            os.close(folder)

    def answer(self) -> Reply:
        """Receive one reply; raises EOFError if the server has closed the connection."""
        number, command, size, flags, error = _HEADER.unpack(self.receive(_HEADER.size))
        return Reply(number, command, flags, error, self.receive(size - _HEADER.size))

    def ask(self, data: bytes) -> Reply:
        self.post(data)
        return self.answer()

    def read(self, region: int, offset: int, count: int = 4) -> int:
        """Return the value at an offset of a region; check that the reply repeats the request."""
        reply = self.ask(read_message(region, offset, count))
        assert reply.error == 0, os.strerror(reply.error)
        assert reply.payload[:16] == struct.pack("<QII", offset, region, count)
        assert len(reply.payload) == 16 + count
        return int.from_bytes(reply.payload[16:], "little")

    def write(self, region: int, offset: int, value: int, count: int = 4) -> None:
        reply = self.ask(write_message(region, offset, value.to_bytes(count, "little")))
        assert reply.error == 0, os.strerror(reply.error)
