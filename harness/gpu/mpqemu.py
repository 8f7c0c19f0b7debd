"""Serve an emulated GPU to stock QEMU's `x-pci-proxy-dev`, which speaks the mpqemu protocol.

The protocol is QEMU's `hw/remote/mpqemu-link.h`: an AF_UNIX stream of native C structures, host
byte order. QEMU's vCPU stands still until the answer to its request has come.
"""

from __future__ import annotations

import array
import enum
import logging
import os
import socket
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import HarnessError
from harness.gpu import GpuAttachment, root_port_window_mib
from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from harness.gpu.emulated import EmulatedGpu
    from harness.provisioning.wait import Clock

_LOG = logging.getLogger(__name__)

DRIVER = "x-pci-proxy-dev"

HEADER = struct.Struct("<i4xQ")
CONFIG_ACCESS = struct.Struct("<IIi")
BAR_ACCESS = struct.Struct("<QQI?3x")
ANSWER = struct.Struct("<Q")
SYSMEM_BYTES = 192

#: More descriptors than the kernel lets ride on one message (SCM_MAX_FD), so none is lost track of.
_ANCILLARY_BYTES = socket.CMSG_SPACE(253 * array.array("i").itemsize)
_RECEIVE_BYTES = 4096
_JOIN_S = 5.0


class Command(enum.IntEnum):
    """What a message asks for."""

    SYNC_SYSMEM = 0
    RET = 1
    PCI_CFGWRITE = 2
    PCI_CFGREAD = 3
    BAR_WRITE = 4
    BAR_READ = 5
    SET_IRQFD = 6
    DEVICE_RESET = 7


#: How many bytes follow the header. RET only ever goes to QEMU.
PAYLOAD_BYTES = {
    Command.SYNC_SYSMEM: SYSMEM_BYTES,
    Command.PCI_CFGWRITE: CONFIG_ACCESS.size,
    Command.PCI_CFGREAD: CONFIG_ACCESS.size,
    Command.BAR_WRITE: BAR_ACCESS.size,
    Command.BAR_READ: BAR_ACCESS.size,
    Command.SET_IRQFD: 0,
    Command.DEVICE_RESET: 0,
}

#: What QEMU sends without waiting for an answer; one would be taken for that of its next request.
UNANSWERED = frozenset({Command.SYNC_SYSMEM, Command.SET_IRQFD})


class ProtocolViolationError(Exception):
    """The other side sent what the protocol does not have; the stream cannot be read on."""


@dataclass(frozen=True)
class Message:
    """One message from QEMU; its fields mean nothing where the command has none."""

    command: Command
    address: int = 0
    size: int = 0
    value: int = 0

    @override
    def __str__(self) -> str:
        if PAYLOAD_BYTES[self.command] in {CONFIG_ACCESS.size, BAR_ACCESS.size}:
            return f"{self.command.name} of {self.size} bytes at {self.address:#x}"
        return self.command.name


class MessageReader:
    """Cuts a byte stream into messages; holds less than one message between two calls."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take `data` and yield the messages that are complete.

        Raises ProtocolViolationError as soon as a header or a message shows it.
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
        """Return how much of an incomplete message has come."""
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
    else:
        return Message(command)
    if not 1 <= size <= most:
        raise ProtocolViolationError(f"QEMU sent {command.name} for {size} bytes at {address:#x}")
    return Message(command, address, size, value)


class EndKind(enum.Enum):
    """Why a conversation with QEMU ended."""

    PEER_CLOSED = "QEMU closed the connection"
    CLOSED = "the harness closed the connection"
    VIOLATION = "QEMU broke the protocol"
    FAILED = "the server failed"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why a conversation ended; `detail` is for the reader."""

    kind: EndKind
    detail: str


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """What the server is doing, for a watchdog; times are monotonic seconds.

    `pending_since_s` is set while the server owes QEMU the answer to `last_request`: for so long
    a vCPU has been standing still.
    """

    requests: int
    last_request: Message | None
    last_request_at_s: float | None
    pending_since_s: float | None
    ending: Ending | None

    def describe(self, now_s: float) -> str:
        """Tell who waits for whom, in one sentence."""
        if self.ending is not None:
            return f"The conversation has ended: {self.ending.detail}."
        if self.last_request is None or self.last_request_at_s is None:
            return "QEMU has not asked anything yet."
        if self.pending_since_s is not None:
            return (
                f"The device has owed QEMU an answer to {self.last_request} for "
                f"{now_s - self.pending_since_s:.1f} s; a vCPU stands still."
            )
        return (
            f"The device owes QEMU nothing; its request {self.requests}, {self.last_request}, "
            f"came {now_s - self.last_request_at_s:.1f} s ago."
        )


class MpqemuServer:
    """Serves one GPU to one QEMU from a thread of its own, until QEMU goes or `close`.

    Descriptors of guest memory that QEMU hands over are closed at once: an interrupt-less device
    without DMA needs none, and in a clone they are the template's memory file.
    """

    def __init__(
        self, gpu: EmulatedGpu, *, device_id: str = "gpu0", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.gpu = gpu
        self.device_id = device_id
        self._clock = clock
        self._ours: socket.socket | None = None
        self._qemus: socket.socket | None = None
        self._thread = threading.Thread(
            target=self._serve, name=f"mpqemu-{device_id}", daemon=True
        )
        self._closing = threading.Event()
        self._requests = 0
        self._last_request: Message | None = None
        self._last_request_at_s: float | None = None
        self._pending_since_s: float | None = None
        self._ending: Ending | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Make the socket pair and begin to serve its one end."""
        self._ours, self._qemus = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread.start()

    def attachment(self) -> GpuAttachment:
        """Return what a machine needs to plug the GPU in.

        The server keeps QEMU's end open until QEMU, which has its own copy by then, asks its
        first question. So whoever plugs need not close anything.

        Raises HarnessError when the GPU was plugged before, or the server is not running.
        """
        # Asked once, since the server's thread may close it at any time.
        fd = -1 if self._qemus is None else self._qemus.fileno()
        if fd < 0:
            raise HarnessError(
                f"GPU '{self.device_id}' has no socket to hand to QEMU, since it was plugged before "
                "or its server does not run; start a new server for each time a GPU is plugged."
            )
        return GpuAttachment(
            id=self.device_id,
            driver=DRIVER,
            fd=fd,
            root_port_window_mib=root_port_window_mib(self.gpu.bars),
        )

    @property
    def state(self) -> ServerState:
        """Return what the server is doing right now."""
        return ServerState(
            requests=self._requests,
            last_request=self._last_request,
            last_request_at_s=self._last_request_at_s,
            pending_since_s=self._pending_since_s,
            ending=self._ending,
        )

    def wait_for_end(self, timeout_s: float) -> Ending:
        """Wait until the conversation has ended by itself, as it does when QEMU goes.

        Raises HarnessError after `timeout_s` seconds.
        """
        self._thread.join(timeout_s)
        ending = self._ending
        if ending is None or self._thread.is_alive():
            raise HarnessError(
                f"Waited {timeout_s:.1f} s for QEMU to let go of GPU '{self.device_id}'. "
                f"{self.state.describe(self._clock.monotonic())}"
            )
        return ending

    def close(self) -> None:
        """End the conversation, and show that neither thread nor socket remains.

        QEMU lives on; its guest then reads all ones. Raises HarnessError when the thread does
        not end.
        """
        self._closing.set()
        if self._ours is not None and self._qemus is not None:
            _shut_down(self._ours)
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                raise HarnessError(
                    f"The server of GPU '{self.device_id}' did not end within {_JOIN_S:.0f} s. "
                    f"{self.state.describe(self._clock.monotonic())}"
                )
            self._qemus.close()
            self._ours.close()

    def _serve(self) -> None:
        ours, qemus = self._ours, self._qemus
        if ours is None or qemus is None:
            raise HarnessError("The server was started without its sockets.")
        try:
            ending = self._converse(ours, qemus)
        except ProtocolViolationError as error:
            ending = Ending(kind=EndKind.VIOLATION, detail=str(error))
        except OSError as error:
            ending = Ending(kind=EndKind.PEER_CLOSED, detail=f"the connection broke: {error}")
        except Exception as error:
            _LOG.exception("The server of GPU '%s' failed", self.device_id)
            ending = Ending(kind=EndKind.FAILED, detail=f"{type(error).__name__}: {error}")
        finally:
            _shut_down(ours)
            qemus.close()
        if self._closing.is_set():
            ending = Ending(kind=EndKind.CLOSED, detail=EndKind.CLOSED.value)
        if ending.kind is EndKind.VIOLATION:
            _LOG.warning("GPU '%s' hung up: %s", self.device_id, ending.detail)
        self._ending = ending

    def _converse(self, ours: socket.socket, qemus: socket.socket) -> Ending:
        reader = MessageReader()
        while True:
            data = _receive(ours)
            if not data:
                return _ending_at_eof(reader)
            # It speaks, so it has its own copy; ours would keep its death from being noticed.
            qemus.close()
            for message in reader.feed(data):
                if not self._handle(message, ours):
                    return Ending(kind=EndKind.CLOSED, detail=EndKind.CLOSED.value)

    def _handle(self, message: Message, ours: socket.socket) -> bool:
        """Carry out one message; return False when the server was closed meanwhile."""
        now_s = self._clock.monotonic()
        self._requests += 1
        self._last_request = message
        self._last_request_at_s = now_s
        if message.command in UNANSWERED:
            return True
        self._pending_since_s = now_s
        if not self.gpu.wait_out_stall(self._closing):
            return False
        answer = self._carry_out(message)
        ours.sendall(HEADER.pack(Command.RET, ANSWER.size) + ANSWER.pack(answer))
        self._pending_since_s = None
        return True

    def _carry_out(self, message: Message) -> int:
        gpu, address, size = self.gpu, message.address, message.size
        match message.command:
            case Command.PCI_CFGREAD:
                return gpu.config_read(address, size)
            case Command.PCI_CFGWRITE:
                gpu.config_write(address, message.value, size)
            case Command.BAR_READ:
                return gpu.memory_read(address, size)
            case Command.BAR_WRITE:
                gpu.memory_write(address, message.value, size)
            case Command.DEVICE_RESET:
                gpu.reset()
            case Command.RET | Command.SYNC_SYSMEM | Command.SET_IRQFD:
                raise AssertionError(f"{message} has no answer")
        return 0


def _receive(sock: socket.socket) -> bytes:
    """Receive what is there, many messages at once if so, and close what came along.

    The descriptors are close-on-exec from the first moment, so that no process which another
    thread starts meanwhile inherits one.
    """
    data, ancillary, _, _ = sock.recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds = array.array("i")
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
            for fd in fds:
                os.close(fd)
    return data


def _ending_at_eof(reader: MessageReader) -> Ending:
    if reader.pending_bytes:
        detail = f"QEMU went in the middle of a message, after {reader.pending_bytes} bytes"
        return Ending(kind=EndKind.VIOLATION, detail=detail)
    return Ending(kind=EndKind.PEER_CLOSED, detail=EndKind.PEER_CLOSED.value)


def _shut_down(sock: socket.socket) -> None:
    """End both directions; wakes a thread that is receiving. Unlike close, it can be repeated."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        # Already shut down or closed.
        return
