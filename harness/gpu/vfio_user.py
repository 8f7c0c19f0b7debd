"""Serves an emulated GPU to unmodified QEMU's `vfio-user-pci` by the vfio-user protocol.

The protocol is QEMU's `docs/interop/vfio-user.rst`: an AF_UNIX stream of little-endian messages.
Regions are accessed only by messages, so BARs may be 64-bit and have their real sizes.
"""

from __future__ import annotations

import enum
import errno
import json
import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from harness.errors import HarnessError
from harness.gpu import GpuAttachment, aperture_mib, root_port_window_mib
from harness.gpu.gsp.guest_memory import MOST_BYTES, GuestMemoryError
from harness.gpu.server import (
    ConnectionEndedError,
    DeviceServer,
    ProtocolViolationError,
    close_all,
    shut_down,
)
from harness.gpu.transport import Transport
from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from harness.gpu.emulated import EmulatedGpu
    from harness.gpu.gsp.guest_memory import GuestMemory
    from harness.provisioning.wait import Clock

HEADER = struct.Struct("<HHIII")
VERSION = struct.Struct("<HH")
DEVICE_INFO = struct.Struct("<IIII")
REGION_INFO = struct.Struct("<IIIIQQ")
IRQ_INFO = struct.Struct("<IIII")
REGION_ACCESS = struct.Struct("<QII")
WRITE_COUNT = struct.Struct("<Q")
SET_IRQS = struct.Struct("<IIIII")
DMA = struct.Struct("<QQ")

#: Flags of a message header.
REPLY = 0x1
NO_REPLY = 0x10
ERROR = 0x20

#: The message number of requests to which the device expects no answer; QEMU answers them only to
#: report an error.
POSTED = 0xFFFF

#: Regions of a PCI function: six BARs, the ROM, configuration space, VGA.
CONFIG_REGION = 7
REGIONS = 9
#: Kinds of interrupt: INTx, MSI, MSI-X, errors, requests. This device has INTx; with an engine, it
#: also has MSI.
IRQS = 5
_INTX = 0
_MSI = 1
#: INTx is signalled through a file descriptor; it can be masked, and raising it also masks it.
_INTX_FLAGS = 0x7
#: MSI is signalled through a file descriptor; its vectors can't change while MSI is in use.
_MSI_FLAGS = 0x9

#: The maximum size of an access in bytes; QEMU's largest access reads all of configuration space.
MOST_DATA_BYTES = 4096
MOST_MESSAGE_BYTES = 16 << 10

#: QEMU's default limit of 5 s would break a stalled device: QEMU 11.1 mistakes a late answer for
#: the answer to its next request, and ends the connection.
_PATIENCE_MS = 3_600_000
_DEVICE_IS_PCI_WITH_RESET = 0x3
_READ_WRITE = 0x3
_IRQ_TRIGGER = 0x20
_MAJOR = 0
_CAPABILITIES: Final = json.dumps(
    {
        "capabilities": {
            "max_msg_fds": 8,
            "max_data_xfer_size": MOST_DATA_BYTES,
            "write_multiple": True,
        }
    }
).encode()
#: A message can contain several writes; each of them has this many bytes of data.
_ONE_OF_MULTI_BYTES = 8
_BAR_SIZES = frozenset({1, 2, 4, 8})


class Command(enum.IntEnum):
    """The commands of messages, except the commands that this device refuses.

    The device sends DMA_READ and DMA_WRITE; QEMU sends all other commands.
    """

    VERSION = 1
    DMA_MAP = 2
    DMA_UNMAP = 3
    DEVICE_GET_INFO = 4
    DEVICE_GET_REGION_INFO = 5
    DEVICE_GET_IRQ_INFO = 7
    DEVICE_SET_IRQS = 8
    REGION_READ = 9
    REGION_WRITE = 10
    DMA_READ = 11
    DMA_WRITE = 12
    DEVICE_RESET = 13
    REGION_WRITE_MULTI = 15


@dataclass(frozen=True)
class Message:
    """One message from QEMU, with the part after its header."""

    number: int
    command: int
    flags: int
    payload: bytes

    @property
    def is_answered(self) -> bool:
        return not self.flags & (NO_REPLY | REPLY)

    @override
    def __str__(self) -> str:
        if self.command not in set(Command):
            return f"command {self.command}"
        name = Command(self.command).name
        is_access = self.command in {Command.REGION_READ, Command.REGION_WRITE}
        if is_access and len(self.payload) >= REGION_ACCESS.size:
            offset, region, count = REGION_ACCESS.unpack_from(self.payload)
            return f"{name} of {count} bytes at {offset:#x} of region {region}"
        return name


class MessageReader:
    """Splits a byte stream into messages; buffers less than one message between two calls.

    `awaited` is the number of the device's own request that may be answered now.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.awaited: int | None = None

    def feed(self, data: bytes) -> Iterator[Message]:
        """Append `data` and yield the messages that are complete.

        Raises ProtocolViolationError for the first malformed header.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                number, command, size, flags, _ = HEADER.unpack_from(self._buffer, start)
                if not HEADER.size <= size <= MOST_MESSAGE_BYTES:
                    raise ProtocolViolationError(
                        f"QEMU sent command {command} with {size} bytes, where {HEADER.size} to "
                        f"{MOST_MESSAGE_BYTES} were expected"
                    )
                if flags & REPLY and number not in {self.awaited, POSTED}:
                    raise ProtocolViolationError(
                        f"QEMU sent an unsolicited answer to command {command}"
                    )
                if len(self._buffer) - start < size:
                    break
                payload = bytes(self._buffer[start + HEADER.size : start + size])
                start += size
                if number == POSTED and flags & REPLY:
                    continue
                if flags & REPLY:
                    # A second answer would be mistaken for the answer to the next request.
                    self.awaited = None
                yield Message(number, command, flags, payload)
        finally:
            del self._buffer[:start]

    @property
    def pending_bytes(self) -> int:
        """Return how many bytes of an incomplete message have arrived."""
        return len(self._buffer)


class _RefusedError(Exception):
    """The request is answered with an error number; the connection stays open."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class VfioUserServer(DeviceServer[Message]):
    """Serves one GPU over a socket in `folder`, to which QEMU connects when the GPU is plugged in.

    QEMU gets a relative path, since the path of a socket has at most 107 bytes; so QEMU's working
    folder has to be `folder`. Folder and socket are accessible to their owner only. The socket is
    removed as soon as QEMU has connected.
    """

    transport = "vfio-user"

    def __init__(
        self,
        gpu: EmulatedGpu,
        *,
        folder: Path,
        device_id: str = "gpu0",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(gpu, device_id=device_id, clock=clock)
        self.socket_path = folder / f"{device_id}.sock"
        self._listener: socket.socket | None = None
        self._ours: socket.socket | None = None
        self._is_connected = False
        self._messages = MessageReader()
        self._taken: list[int] = []
        self._irqs: dict[int, int] = {}
        if gpu.engine is not None:
            gpu.engine.signal = self._signal
        self._handlers: Mapping[int, Callable[[bytes], bytes]] = {
            Command.VERSION: _version,
            Command.DMA_MAP: lambda _: b"",
            Command.DMA_UNMAP: lambda payload: payload,
            Command.DEVICE_GET_INFO: lambda _: DEVICE_INFO.pack(
                DEVICE_INFO.size, _DEVICE_IS_PCI_WITH_RESET, REGIONS, IRQS
            ),
            Command.DEVICE_GET_REGION_INFO: self._region_info,
            Command.DEVICE_GET_IRQ_INFO: self._irq_info,
            Command.DEVICE_SET_IRQS: self._set_irqs,
            Command.REGION_READ: self._region_read,
            Command.REGION_WRITE: self._region_write,
            Command.REGION_WRITE_MULTI: self._region_write_multi,
            Command.DEVICE_RESET: self._reset,
        }

    @override
    def attachment(self) -> GpuAttachment:
        if not self.socket_path.is_socket():
            raise HarnessError(
                f"GPU '{self.device_id}' has no socket for QEMU: the GPU was plugged in once already, or "
                "its server is not running. Start a new server each time you plug in a GPU."
            )
        return GpuAttachment(
            id=self.device_id,
            driver=Transport.VFIO_USER.value,
            root_port_window_mib=root_port_window_mib(self.gpu.bars),
            aperture_mib=aperture_mib(self.gpu.bars),
            properties={
                "socket": {"type": "unix", "path": self.socket_path.name},
                "x-msg-timeout": _PATIENCE_MS,
            },
        )

    @override
    def _open(self) -> None:
        # The path through a descriptor is short even if the folder's path is long.
        folder = os.open(self.socket_path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(f"/proc/self/fd/{folder}/{self.socket_path.name}")
            self.socket_path.chmod(0o600)
            self._listener.listen(1)
        except BaseException:
            self._listener.close()
            raise
        finally:
            os.close(folder)

    @override
    def _connection(self) -> socket.socket | None:
        if self._listener is None:
            return None
        try:
            self._ours, _ = self._listener.accept()
        except OSError:
            # The listener was shut down before any QEMU connected.
            return None
        # If `close` already ran, `close` does not know this connection and waits until this thread
        # ends, so the thread ends here.
        return None if self._closing.is_set() else self._ours

    @override
    def _on_data(self) -> None:
        if not self._is_connected:
            self._is_connected = True
            self.socket_path.unlink(missing_ok=True)

    @override
    def _hang_up(self) -> None:
        for end in (self._ours, self._listener):
            if end is not None:
                shut_down(end)

    @override
    def _release(self) -> None:
        for end in (self._ours, self._listener):
            if end is not None:
                end.close()
        self.socket_path.unlink(missing_ok=True)

    @override
    def _reader(self) -> MessageReader:
        return self._messages

    @override
    def _guest_memory(self, connection: socket.socket) -> GuestMemory:
        def ask(number: int, request: bytes) -> Message:
            self._messages.awaited = number
            connection.sendall(request)
            return self._await_answer(connection, self._messages)

        return _MemoryByMessages(ask, connection.sendall)

    def _await_answer(self, connection: socket.socket, reader: MessageReader) -> Message:
        """Answer QEMU's requests until the answer to the device's own request arrives."""
        while (received := self._next(connection, reader)) is not None:
            message, descriptors = received
            if message.flags & REPLY:
                return message
            if not self._handle(message, descriptors, connection):
                break
        raise ConnectionEndedError

    @override
    def _take_descriptors(self, request: Message, descriptors: list[int]) -> None:
        """Keep the descriptors that signal interrupts, and close all other descriptors."""
        if self.gpu.engine is not None and request.command == Command.DEVICE_SET_IRQS:
            # An earlier request that was refused may have left descriptors here.
            close_all(self._taken)
            self._taken, descriptors = descriptors, []
        close_all(descriptors)

    @override
    def _forget_descriptors(self) -> None:
        close_all(self._taken)
        irqs, self._irqs = self._irqs, {}
        close_all(list(irqs.values()))

    def _set_irqs(self, payload: bytes) -> bytes:
        """Store the descriptor of an interrupt, or drop it if the request has no descriptor."""
        _, flags, index, _, count = _unpacked(SET_IRQS, payload)
        if self.gpu.engine is None:
            return b""
        if index not in {_INTX, _MSI}:
            close_all(self._taken)
            raise _RefusedError(errno.EINVAL)
        # Other actions mask the interrupt, or define how to unmask it.
        if flags & _IRQ_TRIGGER and (self._taken or not count):
            before = self._irqs.pop(index, None)
            if before is not None:
                os.close(before)
            if self._taken:
                self._irqs[index] = self._taken.pop(0)
        close_all(self._taken)
        return b""

    def _signal(self) -> None:
        """Raise the interrupt: by MSI if the guest has enabled it, else by INTx."""
        irq = self._irqs.get(_MSI, self._irqs.get(_INTX))
        if irq is not None:
            os.eventfd_write(irq, 1)

    def _irq_info(self, payload: bytes) -> bytes:
        _, _, index, _ = _unpacked(IRQ_INFO, payload)
        if index >= IRQS:
            raise _RefusedError(errno.EINVAL)
        there = {_INTX: _INTX_FLAGS}
        if self.gpu.engine is not None:
            there[_MSI] = _MSI_FLAGS
        return IRQ_INFO.pack(IRQ_INFO.size, there.get(index, 0), index, int(index in there))

    @override
    def _carry_out(self, request: Message) -> bytes:
        try:
            payload = self._answer(request)
            flags, number = REPLY, 0
        except _RefusedError as refusal:
            payload = b""
            flags, number = REPLY | ERROR, refusal.number
        size = HEADER.size + len(payload)
        return HEADER.pack(request.number, request.command, size, flags, number) + payload

    def _answer(self, request: Message) -> bytes:
        handler = self._handlers.get(request.command)
        if handler is None:
            raise _RefusedError(errno.ENOTSUP)
        return handler(request.payload)

    def _reset(self, _payload: bytes) -> bytes:
        self.gpu.reset()
        return b""

    def _region_size(self, region: int) -> int:
        if region >= REGIONS:
            raise _RefusedError(errno.EINVAL)
        if region == CONFIG_REGION:
            return self.gpu.config_size
        bar = self.gpu.bars.get(region)
        return 0 if bar is None else bar.size

    def _region_info(self, payload: bytes) -> bytes:
        _, _, region, _, _, _ = _unpacked(REGION_INFO, payload)
        size = self._region_size(region)
        flags = _READ_WRITE if size else 0
        return REGION_INFO.pack(REGION_INFO.size, flags, region, 0, size, 0)

    def _region_read(self, payload: bytes) -> bytes:
        offset, region, count = self._access(payload)
        if region == CONFIG_REGION:
            value = self.gpu.config_read(offset, count)
        else:
            value = self.gpu.bar_read(region, offset, count)
        return REGION_ACCESS.pack(offset, region, count) + value.to_bytes(count, "little")

    def _region_write(self, payload: bytes) -> bytes:
        offset, region, count = self._access(payload)
        data = payload[REGION_ACCESS.size :]
        if len(data) != count:
            raise _RefusedError(errno.EINVAL)
        value = int.from_bytes(data, "little")
        if region == CONFIG_REGION:
            self.gpu.config_write(offset, value, count)
        else:
            self.gpu.bar_write(region, offset, value, count)
        return REGION_ACCESS.pack(offset, region, count)

    def _region_write_multi(self, payload: bytes) -> bytes:
        """Carry out the writes that QEMU has collected in one message."""
        (count,) = _unpacked(WRITE_COUNT, payload)
        size = REGION_ACCESS.size + _ONE_OF_MULTI_BYTES
        if count > len(payload) // size:
            raise _RefusedError(errno.EINVAL)
        for index in range(count):
            start = WRITE_COUNT.size + index * size
            *_, length = REGION_ACCESS.unpack_from(payload, start)
            if length > _ONE_OF_MULTI_BYTES:
                raise _RefusedError(errno.EINVAL)
            self._region_write(payload[start : start + REGION_ACCESS.size + length])
        return payload[: WRITE_COUNT.size]

    def _access(self, payload: bytes) -> tuple[int, int, int]:
        """Return offset, region and count of an access within its region."""
        if len(payload) < REGION_ACCESS.size:
            raise _RefusedError(errno.EINVAL)
        offset, region, count = REGION_ACCESS.unpack_from(payload)
        fits = 1 <= count <= MOST_DATA_BYTES if region == CONFIG_REGION else count in _BAR_SIZES
        if not fits or offset + count > self._region_size(region):
            raise _RefusedError(errno.EINVAL)
        return offset, region, count


def _unpacked(layout: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) < layout.size:
        raise _RefusedError(errno.EINVAL)
    return layout.unpack_from(payload)


def _version(payload: bytes) -> bytes:
    """Negotiate version 0.0 or 0.1, and send this side's capabilities."""
    major, minor = _unpacked(VERSION, payload)
    if major != _MAJOR:
        raise _RefusedError(errno.EINVAL)
    return VERSION.pack(_MAJOR, min(minor, 1)) + _CAPABILITIES + b"\0"


class _MemoryByMessages:
    """The guest's memory, accessed by messages to QEMU; the memory need not be shared between processes."""

    def __init__(
        self, ask: Callable[[int, bytes], Message], post: Callable[[bytes], None]
    ) -> None:
        """`ask` sends a request with a number and returns the answer; `post` only sends a request."""
        self._send = ask
        self._post = post
        self._number = 0

    def read(self, address: int, size: int) -> bytes:
        pieces: list[bytes] = []
        for at, length in _pieces(address, size):
            answer = self._ask(Command.DMA_READ, DMA.pack(at, length))
            pieces.append(answer[DMA.size :])
            if len(pieces[-1]) != length:
                raise GuestMemoryError(
                    f"QEMU returned {len(pieces[-1])} of {length} bytes of the guest's memory at {at:#x}."
                )
        return b"".join(pieces)

    def write(self, address: int, data: bytes) -> None:
        for at, length in _pieces(address, len(data)):
            piece = data[at - address : at - address + length]
            self._ask(Command.DMA_WRITE, DMA.pack(at, length) + piece)

    def post(self, address: int, data: bytes) -> None:
        for at, length in _pieces(address, len(data)):
            piece = data[at - address : at - address + length]
            size = HEADER.size + DMA.size + length
            header = HEADER.pack(POSTED, Command.DMA_WRITE, size, NO_REPLY, 0)
            self._post(header + DMA.pack(at, length) + piece)

    def _ask(self, command: Command, payload: bytes) -> bytes:
        self._number = (self._number + 1) % (POSTED & 0x7FFF)
        # The device numbers its requests from 0x8000, since QEMU numbers its own requests from 0.
        number = 0x8000 | self._number
        header = HEADER.pack(number, command, HEADER.size + len(payload), 0, 0)
        answer = self._send(number, header + payload)
        if answer.flags & ERROR:
            raise GuestMemoryError(
                f"QEMU refused {command.name} at address {DMA.unpack_from(payload)[0]:#x} of the guest."
            )
        return answer.payload


def _pieces(address: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the pages of a range of addresses; raises GuestMemoryError if the range is invalid."""
    if not 0 <= size <= MOST_BYTES or address + size > 1 << 64:
        raise GuestMemoryError(f"{size} bytes at {address:#x} are not a range of memory.")
    end = address + size
    while address < end:
        length = min(end - address, MOST_DATA_BYTES - address % MOST_DATA_BYTES)
        yield address, length
        address += length
