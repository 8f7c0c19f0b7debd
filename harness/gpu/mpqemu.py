"""Serves an emulated GPU to unmodified QEMU's `x-pci-proxy-dev` by the mpqemu protocol.

The protocol is QEMU's `hw/remote/mpqemu-link.h`: an AF_UNIX stream of native C structures in host
byte order. A vCPU of QEMU is blocked until its request is answered.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import HarnessError
from harness.gpu import GpuAttachment, root_port_window_mib
from harness.gpu.gsp.guest_memory import MappedMemory
from harness.gpu.server import DeviceServer, ProtocolViolationError, close_all, shut_down
from harness.gpu.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.gpu.gsp.guest_memory import GuestMemory

HEADER = struct.Struct("<i4xQ")
CONFIG_ACCESS = struct.Struct("<IIi")
BAR_ACCESS = struct.Struct("<QQI?3x")
ANSWER = struct.Struct("<Q")
SYSMEM = struct.Struct("<8Q8Q8q")
SYSMEM_BYTES = SYSMEM.size


class Command(enum.IntEnum):
    """The command of a message."""

    SYNC_SYSMEM = 0
    RET = 1
    PCI_CFGWRITE = 2
    PCI_CFGREAD = 3
    BAR_WRITE = 4
    BAR_READ = 5
    SET_IRQFD = 6
    DEVICE_RESET = 7


#: The number of bytes after the header, by command. Only the device sends RET.
PAYLOAD_BYTES = {
    Command.SYNC_SYSMEM: SYSMEM_BYTES,
    Command.PCI_CFGWRITE: CONFIG_ACCESS.size,
    Command.PCI_CFGREAD: CONFIG_ACCESS.size,
    Command.BAR_WRITE: BAR_ACCESS.size,
    Command.BAR_READ: BAR_ACCESS.size,
    Command.SET_IRQFD: 0,
    Command.DEVICE_RESET: 0,
}

#: Commands that must not be answered: QEMU would mistake the answer for the answer to its next
#: request.
UNANSWERED = frozenset({Command.SYNC_SYSMEM, Command.SET_IRQFD})


@dataclass(frozen=True)
class Message:
    """One message from QEMU; fields that do not belong to its command are 0."""

    command: Command
    address: int = 0
    size: int = 0
    value: int = 0
    regions: tuple[tuple[int, int, int], ...] = ()
    """The address, size and file offset of each region of memory, for SYNC_SYSMEM."""

    @property
    def is_answered(self) -> bool:
        return self.command not in UNANSWERED

    @override
    def __str__(self) -> str:
        if PAYLOAD_BYTES[self.command] in {CONFIG_ACCESS.size, BAR_ACCESS.size}:
            return f"{self.command.name} of {self.size} bytes at {self.address:#x}"
        return self.command.name


class MessageReader:
    """Splits a byte stream into messages; buffers less than one message between two calls."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Append `data` and yield the messages that are complete.

        Raises ProtocolViolationError for the first malformed header or message.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                command, length = _read_header(self._buffer, start)
                end = start + HEADER.size + length
                if len(self._buffer) < end:
                    break
                message = _read_message(command, self._buffer, start + HEADER.size)
                start = end
                yield message
        finally:
            del self._buffer[:start]

    @property
    def pending_bytes(self) -> int:
        """Return how many bytes of an incomplete message have arrived."""
        return len(self._buffer)


def _read_header(buffer: bytearray, start: int) -> tuple[Command, int]:
    number, length = HEADER.unpack_from(buffer, start)
    try:
        command = Command(number)
        expected = PAYLOAD_BYTES[command]
    except (ValueError, KeyError):
        raise ProtocolViolationError(f"QEMU sent the unknown command {number}") from None
    if length != expected:
        raise ProtocolViolationError(
            f"QEMU sent {command.name} with {length} bytes of payload instead of {expected}"
        )
    return command, length


def _read_message(command: Command, buffer: bytearray, start: int) -> Message:
    if command in {Command.PCI_CFGREAD, Command.PCI_CFGWRITE}:
        address, value, size = CONFIG_ACCESS.unpack_from(buffer, start)
        most = 4
    elif command in {Command.BAR_READ, Command.BAR_WRITE}:
        address, value, size, _ = BAR_ACCESS.unpack_from(buffer, start)
        most = 8
    elif command is Command.SYNC_SYSMEM:
        words = SYSMEM.unpack_from(buffer, start)
        regions = zip(words[:8], words[8:16], words[16:], strict=True)
        return Message(command, regions=tuple(regions))
    else:
        return Message(command)
    if not 1 <= size <= most:
        raise ProtocolViolationError(f"QEMU sent {command.name} for {size} bytes at {address:#x}")
    return Message(command, address, size, value)


class MpqemuServer(DeviceServer[Message]):
    """Serves one GPU over a socket pair; QEMU inherits one end of the pair, or gets it over QMP.

    The device is conventional PCI without interrupts, and has 32-bit BARs. QEMU hangs if two of
    its threads access the device at the same time. So a guest needs one vCPU, or vCPUs that share
    a thread.
    """

    transport = "mpqemu"

    _ours: socket.socket | None = None
    _qemus: socket.socket | None = None
    _memory: MappedMemory | None = None
    _irq: int | None = None

    @override
    def attachment(self) -> GpuAttachment:
        """Return the data that a machine needs to plug the GPU in.

        The server keeps QEMU's end of the socket pair open until QEMU sends its first request;
        QEMU then has its own copy. The caller need not close QEMU's end.
        """
        # The descriptor is read only once, since the server's thread may close it at any time.
        fd = -1 if self._qemus is None else self._qemus.fileno()
        if fd < 0:
            raise HarnessError(
                f"GPU '{self.device_id}' has no socket for QEMU: the GPU was plugged in once already, or "
                "its server is not running. Start a new server each time you plug in a GPU."
            )
        return GpuAttachment(
            id=self.device_id,
            driver=Transport.MPQEMU.value,
            fd=fd,
            root_port_window_mib=root_port_window_mib(self.gpu.bars),
        )

    @override
    def _open(self) -> None:
        if self.gpu.engine is not None:
            self.gpu.engine.signal = self._signal
        self._ours, self._qemus = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    @override
    def _connection(self) -> socket.socket | None:
        return self._ours

    @override
    def _on_data(self) -> None:
        # QEMU has its own copy of this socket, so close the server's copy: while that copy is open,
        # the server can't detect that QEMU has exited.
        if self._qemus is not None:
            self._qemus.close()

    @override
    def _hang_up(self) -> None:
        if self._ours is not None:
            shut_down(self._ours)

    @override
    def _release(self) -> None:
        for end in (self._qemus, self._ours):
            if end is not None:
                end.close()

    @override
    def _reader(self) -> MessageReader:
        return MessageReader()

    @override
    def _guest_memory(self, connection: socket.socket) -> GuestMemory:
        self._memory = self._memory or MappedMemory()
        return self._memory

    @override
    def _take_descriptors(self, request: Message, descriptors: list[int]) -> None:
        """Map the guest's memory by the new descriptors, or store the interrupt's descriptor."""
        if self._memory is not None and request.command is Command.SYNC_SYSMEM:
            self._memory.clear()
            for fd, region in zip(descriptors, request.regions, strict=False):
                self._memory.add(*region, fd=fd)
        elif self.gpu.engine is not None and request.command is Command.SET_IRQFD and descriptors:
            self._forget_irq()
            self._irq = descriptors.pop(0)
        close_all(descriptors)

    @override
    def _forget_descriptors(self) -> None:
        self._forget_irq()
        if self._memory is not None:
            self._memory.clear()

    def _forget_irq(self) -> None:
        irq, self._irq = self._irq, None
        if irq is not None:
            os.close(irq)

    def _signal(self) -> None:
        """Raise the interrupt; QEMU delivers it only with KVM."""
        if self._irq is not None:
            os.eventfd_write(self._irq, 1)

    @override
    def _carry_out(self, request: Message) -> bytes:
        gpu, address, size = self.gpu, request.address, request.size
        answer = 0
        match request.command:
            case Command.PCI_CFGREAD:
                answer = gpu.config_read(address, size)
            case Command.PCI_CFGWRITE:
                gpu.config_write(address, request.value, size)
            case Command.BAR_READ:
                answer = gpu.memory_read(address, size)
            case Command.BAR_WRITE:
                gpu.memory_write(address, request.value, size)
            case Command.DEVICE_RESET:
                gpu.reset()
            case Command.RET | Command.SYNC_SYSMEM | Command.SET_IRQFD:
                return b""
        return HEADER.pack(Command.RET, ANSWER.size) + ANSWER.pack(answer)
