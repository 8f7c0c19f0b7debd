"""A client that plays QEMU's part of the mpqemu protocol over the server's socket pair."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

from harness.gpu.mpqemu import Command
from suites.unit.gpu.socketside import SocketSide

if TYPE_CHECKING:
    from harness.gpu import GpuAttachment


def message(command: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """Return one message as QEMU writes it, or with the wrong `length` in its header."""
    return struct.pack("<iIQ", command, 0, len(payload) if length is None else length) + payload


def config_message(command: int, offset: int, value: int = 0, size: int = 4) -> bytes:
    """Return the message for an access to configuration space."""
    return message(command, struct.pack("<IIi", offset, value, size))


def bar_message(command: int, address: int, value: int = 0, size: int = 4) -> bytes:
    """Return the message for an access to a guest address that a BAR claims."""
    return message(command, struct.pack("<QQIB3x", address, value, size, 1))


class QemuSide(SocketSide):
    """QEMU's end of the socket pair: a copy of the descriptor, as after fork or SCM_RIGHTS."""

    def __init__(self, attachment: GpuAttachment) -> None:
        assert attachment.fd is not None
        super().__init__(socket.socket(fileno=os.dup(attachment.fd)))

    def answer(self) -> int:
        """Receive one answer; raises EOFError if the server has closed the connection."""
        command, _, length, value = struct.unpack("<iIQQ", self.receive(24))
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
