"""Serve an emulated GPU to one QEMU: the thread, its end, and who waits for whom.

What is said on the wire is the transports' own; each is a `DeviceServer`.
"""

from __future__ import annotations

import abc
import array
import enum
import logging
import os
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from harness.errors import HarnessError
from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from harness.gpu import GpuAttachment
    from harness.gpu.emulated import EmulatedGpu
    from harness.provisioning.wait import Clock

_LOG = logging.getLogger(__name__)

#: More descriptors than the kernel lets ride on one message (SCM_MAX_FD), so none is lost track of.
_ANCILLARY_BYTES = socket.CMSG_SPACE(253 * array.array("i").itemsize)
_RECEIVE_BYTES = 4096
_JOIN_S = 5.0


class ProtocolViolationError(Exception):
    """The other side sent what the protocol does not have; the stream cannot be read on."""


class Request(Protocol):
    """One message from QEMU; as text it names what was asked, for the watchdog."""

    @property
    def is_answered(self) -> bool:
        """Whether QEMU waits for an answer: until it has come, a vCPU may stand still."""
        ...


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


_CLOSED = Ending(kind=EndKind.CLOSED, detail=EndKind.CLOSED.value)

R = TypeVar("R", bound=Request)
R_co = TypeVar("R_co", bound=Request, covariant=True)


class Reader(Protocol[R_co]):
    """Cuts a byte stream into requests; holds less than one message between two calls."""

    def feed(self, data: bytes) -> Iterator[R_co]:
        """Take `data` and yield the requests that are complete.

        Raises ProtocolViolationError as soon as a header or a message shows it.
        """
        ...

    @property
    def pending_bytes(self) -> int:
        """Return how much of an incomplete message has come."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServerState(Generic[R]):
    """What the server is doing, for a watchdog; times are monotonic seconds.

    `pending_since_s` is set while the server owes QEMU the answer to `last_request`: for so long
    a vCPU has been standing still.
    """

    requests: int
    last_request: R | None
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


class DeviceServer(abc.ABC, Generic[R]):
    """Serves one GPU to one QEMU from a thread of its own, until QEMU goes or `close`.

    Descriptors of guest memory that QEMU hands over are closed at once: an interrupt-less device
    without DMA needs none, and in a clone they are the template's memory file.
    """

    #: The transport's name in threads and messages.
    transport: ClassVar[str]

    def __init__(
        self, gpu: EmulatedGpu, *, device_id: str = "gpu0", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.gpu = gpu
        self.device_id = device_id
        self._clock = clock
        self._thread = threading.Thread(
            target=self._serve, name=f"{self.transport}-{device_id}", daemon=True
        )
        self._closing = threading.Event()
        self._is_started = False
        self._requests = 0
        self._last_request: R | None = None
        self._last_request_at_s: float | None = None
        self._pending_since_s: float | None = None
        self._ending: Ending | None = None

    # What a transport adds.

    @abc.abstractmethod
    def attachment(self) -> GpuAttachment:
        """Return what a machine needs to plug the GPU in.

        Raises HarnessError when the GPU was plugged before, or the server is not running.
        """

    @abc.abstractmethod
    def _open(self) -> None:
        """Make the sockets; runs before the thread."""

    @abc.abstractmethod
    def _connection(self) -> socket.socket | None:
        """Return the connection with QEMU, waited for in the thread; None once closed."""

    @abc.abstractmethod
    def _has_spoken(self) -> None:
        """Hear, in the thread, that QEMU has sent something: it has what it was handed."""

    @abc.abstractmethod
    def _hang_up(self) -> None:
        """Wake a thread that waits for QEMU, and let QEMU see the end; can be repeated."""

    @abc.abstractmethod
    def _release(self) -> None:
        """Close what `_open` and `_connection` made; the thread has ended."""

    @abc.abstractmethod
    def _reader(self) -> Reader[R]:
        """Return what cuts the stream into requests."""

    @abc.abstractmethod
    def _carry_out(self, request: R) -> bytes:
        """Do what is asked of the GPU, and return the answer; empty where there is none."""

    # What is the same for all.

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
        """Make the sockets and begin to serve."""
        self._open()
        self._is_started = True
        self._thread.start()

    @property
    def state(self) -> ServerState[R]:
        """Return what the server is doing right now."""
        return ServerState(
            requests=self._requests,
            last_request=self._last_request,
            last_request_at_s=self._last_request_at_s,
            pending_since_s=self._pending_since_s,
            ending=self._ending,
        )

    def trouble(self, patience_s: float) -> str | None:
        """Say that a guest has been blocked on the device for longer than `patience_s`, or None.

        This is the stall watchdog; whoever waits for a guest asks it.
        """
        state, now_s = self.state, self._clock.monotonic()
        since_s = state.pending_since_s
        if state.ending is not None or since_s is None or now_s - since_s <= patience_s:
            return None
        return f"its emulated GPU '{self.device_id}' is stuck: {state.describe(now_s)}"

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
        if not self._is_started:
            return
        self._hang_up()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            raise HarnessError(
                f"The server of GPU '{self.device_id}' did not end within {_JOIN_S:.0f} s. "
                f"{self.state.describe(self._clock.monotonic())}"
            )
        self._release()

    def _serve(self) -> None:
        try:
            connection = self._connection()
            ending = _CLOSED if connection is None else self._converse(connection)
        except ProtocolViolationError as error:
            ending = Ending(kind=EndKind.VIOLATION, detail=str(error))
        except OSError as error:
            ending = Ending(kind=EndKind.PEER_CLOSED, detail=f"the connection broke: {error}")
        except Exception as error:
            _LOG.exception("The server of GPU '%s' failed", self.device_id)
            ending = Ending(kind=EndKind.FAILED, detail=f"{type(error).__name__}: {error}")
        finally:
            self._hang_up()
            self._has_spoken()
        if self._closing.is_set():
            ending = _CLOSED
        if ending.kind is EndKind.VIOLATION:
            _LOG.warning("GPU '%s' hung up: %s", self.device_id, ending.detail)
        self._ending = ending

    def _converse(self, connection: socket.socket) -> Ending:
        reader = self._reader()
        while True:
            data = _receive(connection)
            if not data:
                return _ending_at_eof(reader.pending_bytes)
            self._has_spoken()
            for request in reader.feed(data):
                if not self._handle(request, connection):
                    return _CLOSED

    def _handle(self, request: R, connection: socket.socket) -> bool:
        """Carry out one request; return False when the server was closed meanwhile."""
        now_s = self._clock.monotonic()
        self._requests += 1
        self._last_request = request
        self._last_request_at_s = now_s
        if request.is_answered:
            self._pending_since_s = now_s
        if not self.gpu.wait_out_stall(self._closing):
            return False
        answer = self._carry_out(request)
        if request.is_answered:
            connection.sendall(answer)
            self._pending_since_s = None
        return True


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


def _ending_at_eof(pending_bytes: int) -> Ending:
    if pending_bytes:
        detail = f"QEMU went in the middle of a message, after {pending_bytes} bytes"
        return Ending(kind=EndKind.VIOLATION, detail=detail)
    return Ending(kind=EndKind.PEER_CLOSED, detail=EndKind.PEER_CLOSED.value)


def shut_down(sock: socket.socket) -> None:
    """End both directions; wakes a thread that is receiving. Unlike close, it can be repeated."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        # Already shut down, closed, or never connected.
        return
