"""Serves an emulated GPU to one QEMU in a thread; the stall watchdog reads the server's state.

Each transport is a `DeviceServer`, which implements its own protocol.
"""

from __future__ import annotations

import abc
import array
import enum
import logging
import os
import select
import socket
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from harness.errors import HarnessError
from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from harness.gpu import GpuAttachment
    from harness.gpu.emulated import EmulatedGpu, Engine
    from harness.gpu.gsp.guest_memory import GuestMemory
    from harness.provisioning.wait import Clock

_LOG = logging.getLogger(__name__)

#: The maximum number of descriptors that the kernel sends in one message (SCM_MAX_FD).
_MOST_DESCRIPTORS = 253
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
_RECEIVE_BYTES = 4096
_JOIN_S = 5.0


class ProtocolViolationError(Exception):
    """QEMU sent data that violates the protocol; the data after it can't be parsed."""


class ConnectionEndedError(Exception):
    """QEMU closed the connection while the device waited for an answer from QEMU."""


class Request(Protocol):
    """One message from QEMU; its `str` describes the request in messages of the watchdog."""

    @property
    def is_answered(self) -> bool:
        """Whether QEMU waits for an answer; a vCPU may be blocked until the answer arrives."""
        ...


class EndKind(enum.Enum):
    """Why a connection with QEMU ended."""

    PEER_CLOSED = "QEMU closed the connection"
    CLOSED = "the harness closed the connection"
    VIOLATION = "QEMU violated the protocol"
    FAILED = "the server failed"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why a connection ended; `detail` is the reason in words."""

    kind: EndKind
    detail: str


_CLOSED = Ending(kind=EndKind.CLOSED, detail=EndKind.CLOSED.value)

R = TypeVar("R", bound=Request)
R_co = TypeVar("R_co", bound=Request, covariant=True)


class Reader(Protocol[R_co]):
    """Splits a byte stream into requests; buffers less than one message between two calls."""

    def feed(self, data: bytes) -> Iterator[R_co]:
        """Append `data` and yield the requests that are complete.

        Raises ProtocolViolationError for the first malformed header or message.
        """
        ...

    @property
    def pending_bytes(self) -> int:
        """Return how many bytes of an incomplete message have arrived."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServerState(Generic[R]):
    """The state of the server, for a watchdog; times are monotonic seconds.

    `pending_since_s` is set while QEMU waits for the answer to `last_request`; this wait may block
    a vCPU.
    """

    requests: int
    last_request: R | None
    last_request_at_s: float | None
    pending_since_s: float | None
    ending: Ending | None

    def describe(self, now_s: float) -> str:
        """Describe in one sentence whether QEMU waits for the device."""
        if self.ending is not None:
            return f"The connection has ended: {self.ending.detail}."
        if self.last_request is None or self.last_request_at_s is None:
            return "QEMU has sent no request yet."
        if self.pending_since_s is not None:
            return (
                f"QEMU has waited {now_s - self.pending_since_s:.1f} s for the answer to "
                f"{self.last_request}; a vCPU is blocked."
            )
        return (
            f"QEMU waits for no answer; its request {self.requests}, {self.last_request}, "
            f"arrived {now_s - self.last_request_at_s:.1f} s ago."
        )


class DeviceServer(abc.ABC, Generic[R]):
    """Serves one GPU to one QEMU in a thread, until QEMU exits or `close` is called.

    If the GPU has no engine, descriptors that QEMU sends are closed immediately. A device without
    interrupts and DMA needs no descriptors. In a cloned machine, the descriptors of the guest's
    memory refer to the memory file of the template.

    The server's thread also does the engine's work, after it has answered the access that posted
    the work. While the work waits for the guest's memory, the thread answers other accesses.
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
        self._incoming: deque[tuple[R, list[int]]] = deque()
        self._descriptors: list[int] = []
        self._wake: int | None = None
        self._wake_lock = threading.Lock()
        self._violation: ProtocolViolationError | None = None

    # Each transport implements the following methods.

    @abc.abstractmethod
    def attachment(self) -> GpuAttachment:
        """Return the data that a machine needs to plug the GPU in.

        Raises HarnessError if the GPU has been plugged in before, or the server is not running.
        """

    @abc.abstractmethod
    def _open(self) -> None:
        """Create the sockets; this method is called before the thread starts."""

    @abc.abstractmethod
    def _connection(self) -> socket.socket | None:
        """Wait, in the server's thread, until QEMU connects; return None if the server is closed."""

    @abc.abstractmethod
    def _on_data(self) -> None:
        """Note, in the server's thread, that data arrived: this proves that QEMU has connected."""

    @abc.abstractmethod
    def _hang_up(self) -> None:
        """Shut down the connection, which wakes the thread and informs QEMU; a second call is harmless."""

    @abc.abstractmethod
    def _release(self) -> None:
        """Close the sockets of `_open` and `_connection`; this method is called when the thread has ended."""

    @abc.abstractmethod
    def _reader(self) -> Reader[R]:
        """Return a new parser of the stream."""

    @abc.abstractmethod
    def _carry_out(self, request: R) -> bytes:
        """Apply a request to the GPU; return the answer, or b'' if the request needs none."""

    @abc.abstractmethod
    def _take_descriptors(self, request: R, descriptors: list[int]) -> None:
        """Store the descriptors that the device needs, and close the request's other descriptors."""

    @abc.abstractmethod
    def _forget_descriptors(self) -> None:
        """Close the stored descriptors; this method is called when the connection has ended."""

    @abc.abstractmethod
    def _guest_memory(self, connection: socket.socket) -> GuestMemory:
        """Return the guest's memory, for the engine's DMA."""

    # All transports share the following methods.

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
        """Create the sockets and start the thread."""
        self._open()
        self._is_started = True
        self._thread.start()

    @property
    def state(self) -> ServerState[R]:
        """Return a snapshot of the server's state."""
        return ServerState(
            requests=self._requests,
            last_request=self._last_request,
            last_request_at_s=self._last_request_at_s,
            pending_since_s=self._pending_since_s,
            ending=self._ending,
        )

    def stall_report(self, patience_s: float) -> str | None:
        """Return a sentence if a guest has waited for the device for longer than `patience_s`.

        This method is the stall watchdog; code that waits for a guest calls it.
        """
        state, now_s = self.state, self._clock.monotonic()
        since_s = state.pending_since_s
        if state.ending is not None or since_s is None or now_s - since_s <= patience_s:
            return None
        return f"its emulated GPU '{self.device_id}' is stuck: {state.describe(now_s)}"

    def wait_for_end(self, timeout_s: float) -> Ending:
        """Wait until QEMU has closed the connection; QEMU does so when it exits, or earlier.

        Raises HarnessError if the connection is still open after `timeout_s` seconds.
        """
        self._thread.join(timeout_s)
        ending = self._ending
        if ending is None or self._thread.is_alive():
            raise HarnessError(
                f"Waited {timeout_s:.1f} s for QEMU to release GPU '{self.device_id}'. "
                f"{self.state.describe(self._clock.monotonic())}"
            )
        return ending

    def close(self) -> None:
        """End the connection, the thread and the sockets.

        QEMU continues to run, and its guest reads all ones from the device. Raises HarnessError if
        the thread does not end.
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
            ending = Ending(kind=EndKind.PEER_CLOSED, detail=f"the connection failed: {error}")
        except Exception as error:
            _LOG.exception("The server of GPU '%s' failed", self.device_id)
            ending = Ending(kind=EndKind.FAILED, detail=f"{type(error).__name__}: {error}")
        finally:
            self._hang_up()
            self._on_data()
            for _, descriptors in self._incoming:
                close_all(descriptors)
            close_all(self._descriptors)
            self._forget_descriptors()
        if self._closing.is_set():
            ending = _CLOSED
        if ending.kind is EndKind.VIOLATION:
            _LOG.warning(
                "The server of GPU '%s' ended the connection: %s", self.device_id, ending.detail
            )
        self._ending = ending

    def _converse(self, connection: socket.socket) -> Ending:
        reader = self._reader()
        engine = self.gpu.engine
        if engine is None:
            while (received := self._next(connection, reader)) is not None:
                if not self._handle(*received, connection):
                    return _CLOSED
            return _ending_at_eof(reader.pending_bytes)
        return self._converse_with_engine(connection, reader, engine)

    def _converse_with_engine(
        self, connection: socket.socket, reader: Reader[R], engine: Engine
    ) -> Ending:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.gpu.wake = self._ring
        memory = self._guest_memory(connection)
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        try:
            while True:
                while engine.has_work and not self._incoming:
                    engine.work(memory)
                if not self._incoming and self._wake in dict(poll.poll()):
                    os.eventfd_read(self._wake)
                    continue
                received = self._next(connection, reader)
                if received is None:
                    return _ending_at_eof(reader.pending_bytes)
                if not self._handle(*received, connection):
                    return _CLOSED
        except ConnectionEndedError:
            return _CLOSED if self._closing.is_set() else _ending_at_eof(reader.pending_bytes)
        finally:
            self.gpu.wake = lambda: None
            with self._wake_lock:
                wake, self._wake = self._wake, None
                os.close(wake)

    def _ring(self) -> None:
        """Wake the thread for work that another thread has posted to the engine."""
        with self._wake_lock:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def _next(self, connection: socket.socket, reader: Reader[R]) -> tuple[R, list[int]] | None:
        """Return the next request and its descriptors, or None once QEMU has closed the socket."""
        while not self._incoming:
            if self._violation is not None:
                raise self._violation
            data, descriptors = _receive(connection)
            earlier = len(self._descriptors)
            self._descriptors += descriptors
            if len(self._descriptors) > _MOST_DESCRIPTORS:
                raise ProtocolViolationError(
                    f"QEMU sent more than {_MOST_DESCRIPTORS} descriptors with one message"
                )
            if not data:
                return None
            self._on_data()
            before = len(self._incoming)
            try:
                for request in reader.feed(data):
                    self._incoming.append((request, []))
            except ProtocolViolationError as error:
                self._violation = error
            if len(self._incoming) > before:
                # Descriptors that arrived earlier belong to the message that was incomplete at that
                # time.
                self._incoming[before][1].extend(self._descriptors[:earlier])
                del self._descriptors[:earlier]
                # The kernel ends a read after the data that was sent with descriptors, so the new
                # descriptors belong to the last message, which may be incomplete.
                if not reader.pending_bytes:
                    self._incoming[-1][1].extend(self._descriptors)
                    self._descriptors = []
        return self._incoming.popleft()

    def _handle(self, request: R, descriptors: list[int], connection: socket.socket) -> bool:
        """Answer one request; return False if the server was closed before the answer."""
        if descriptors:
            self._take_descriptors(request, descriptors)
        now_s = self._clock.monotonic()
        self._requests += 1
        self._last_request = request
        self._last_request_at_s = now_s
        if request.is_answered:
            self._pending_since_s = now_s
        if not self.gpu.wait_for_stall_end(self._closing):
            return False
        answer = self._carry_out(request)
        if request.is_answered:
            connection.sendall(answer)
            self._pending_since_s = None
        return True


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive the available data, which may be many messages, and its descriptors.

    The descriptors are received close-on-exec, so that a process that another thread starts does
    not inherit them.
    """
    data, ancillary, _, _ = sock.recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    return data, descriptors.tolist()


def close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _ending_at_eof(pending_bytes: int) -> Ending:
    if pending_bytes:
        detail = f"QEMU ended in the middle of a message, after {pending_bytes} bytes"
        return Ending(kind=EndKind.VIOLATION, detail=detail)
    return Ending(kind=EndKind.PEER_CLOSED, detail=EndKind.PEER_CLOSED.value)


def shut_down(sock: socket.socket) -> None:
    """Shut down both directions, and so wake a receiving thread; a second call is harmless."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The socket is already shut down, is closed, or was never connected.
        return
