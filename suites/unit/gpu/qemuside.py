"""A client that plays QEMU's part of the mpqemu protocol over the server's socket pair."""

from __future__ import annotations

import array
import os
import socket
import struct
from typing import TYPE_CHECKING

from harness.gpu.mpqemu import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.gpu import GpuAttachment

#: A lost answer fails the test instead of hanging it.
_PATIENCE_S = 10.0


def message(command: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """Return one message as QEMU writes it; `length` makes its header lie."""
    return struct.pack("<iIQ", command, 0, len(payload) if length is None else length) + payload


def config_message(command: int, offset: int, value: int = 0, size: int = 4) -> bytes:
    """Return an access to configuration space."""
    return message(command, struct.pack("<IIi", offset, value, size))


def bar_message(command: int, address: int, value: int = 0, size: int = 4) -> bytes:
    """Return an access to guest memory that a BAR claims."""
    return message(command, struct.pack("<QQIB3x", address, value, size, 1))


class QemuSide:
    """QEMU's end, with a descriptor of its own as after fork or SCM_RIGHTS."""

    def __init__(self, attachment: GpuAttachment) -> None:
        assert attachment.fd is not None
        self.sock = socket.socket(fileno=os.dup(attachment.fd))
        self.sock.settimeout(_PATIENCE_S)

    def close(self) -> None:
        self.sock.close()

    def post(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send without waiting."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([data], rights)

    def answer(self) -> int:
        """Receive one answer; EOFError when the server has hung up."""
        data = bytearray()
        while len(data) < 24:
            try:
                more = self.sock.recv(24 - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise EOFError(f"the server hung up after {len(data)} bytes")
            data += more
        command, _, length, value = struct.unpack("<iIQQ", data)
        assert (command, length) == (Command.RET, 8)
        return int(value)

    def ask(self, data: bytes) -> int:
        """Send a request and wait for its answer."""
        self.post(data)
        return self.answer()

    def config_read(self, offset: int, size: int = 4) -> int:
        return self.ask(config_message(Command.PCI_CFGREAD, offset, size=size))

    def config_write(self, offset: int, value: int, size: int = 4) -> None:
        assert self.ask(config_message(Command.PCI_CFGWRITE, offset, value, size)) == 0

    def bar_read(self, address: int, size: int = 4) -> int:
        return self.ask(bar_message(Command.BAR_READ, address, size=size))

    def bar_write(self, address: int, value: int, size: int = 4) -> None:
        assert self.ask(bar_message(Command.BAR_WRITE, address, value, size)) == 0

    def has_been_hung_up_on(self) -> bool:
        """Return whether nothing but the end of the stream is left to receive."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True
