"""The link to a guest's agent: one thread sends frames and receives answers on a socket."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import select
import socket
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.agent import OLDEST_PROTOCOL, PROTOCOL, frames
from harness.errors import HarnessError
from harness.limits import AGENT_BACKLOG
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Seconds within which a cancelled command has to end.
_CANCEL_S = 2.0
_RECEIVE_BYTES = 1 << 20
_PROGRAM_CHUNK = 32 << 10
_PROTOCOLS = range(OLDEST_PROTOCOL, PROTOCOL + 1)
#: Bytes that Python needs for an item of a queue, in addition to the item's content.
_ITEM_BYTES = 128
_STREAMS = frozenset({frames.STDOUT, frames.STDERR, frames.DATA})
_LAST = frozenset({frames.RESULT, frames.ERROR})
#: Consumed bytes are reported to the guest in steps of this size.
_CREDIT_STEP = 256 << 10


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """The first message of an agent to a new client."""

    boot_id: str
    has_nonce: bool
    protocol: int = PROTOCOL


def message(kind: int, payload: bytes = b"") -> Callable[[int], bytes]:
    """Return a function that renders a request, given the id of the request."""
    return lambda request: frames.encode_message(kind, request, payload)


class Call:
    """A request in flight, with the received frames that no thread has read yet, up to a limit."""

    def __init__(self, request: int, what: str, render: Callable[[int], bytes]) -> None:
        self.request = request
        self.what = what
        self.render = render
        self.answers: deque[tuple[int, bytearray]] = deque()
        self.parts = bytearray()
        self.failure: str | None = None
        self.has_ended = False
        self.changed = threading.Condition()
        self.consumed_bytes = 0
        self.has_given_credit = False
        self._held_bytes = 0

    def put(self, kind: int, payload: bytes) -> None:
        """Store a frame. Raises ProtocolError if the unread frames exceed the limit."""
        with self.changed:
            if self.has_ended:
                return
            if kind == frames.MORE:
                self.parts += payload
                if len(self.parts) > frames.MAX_MESSAGE:
                    raise frames.ProtocolError(
                        f"An answer to {self.what} is longer than {frames.MAX_MESSAGE} bytes."
                    )
                return
            whole, self.parts = self.parts + payload, bytearray()
            self.has_ended = kind in _LAST
            self._held_bytes += len(whole)
            if self._joins_last(kind, whole):
                self.answers[-1][1].extend(whole)
            else:
                self._held_bytes += _ITEM_BYTES
                self.answers.append((kind, whole))
            if self._held_bytes > AGENT_BACKLOG.bytes:
                raise frames.ProtocolError(str(AGENT_BACKLOG.error(self.what)))
            self.changed.notify()

    def _joins_last(self, kind: int, content: bytearray) -> bool:
        """Return whether to append `content` to the last frame. A guest may send single bytes."""
        if kind not in _STREAMS or not self.answers:
            return False
        last, kept = self.answers[-1]
        return last == kind and len(kept) + len(content) <= frames.MAX_PAYLOAD

    def fail(self, reason: str) -> None:
        with self.changed:
            if not self.has_ended and self.failure is None:
                self.failure = reason
                self.changed.notify()

    def wait(self, deadline: Deadline) -> bool:
        """Wait until a frame arrives, and return whether a frame arrived before the deadline.

        After the deadline, the result is true only if the answer has ended or failed.
        """
        with self.changed:
            deadline.wait(self.changed, lambda: self.answers or self.failure is not None)
            return self.has_ended or self.failure is not None or not deadline.has_passed()

    def next(self, deadline: Deadline) -> tuple[int, bytes] | None:
        """Return the next frame, or None at the deadline. Frames before a failure are returned first.

        After the deadline a frame is returned only if the answer has ended or failed: a guest that
        sends without end would otherwise block its reader for ever.
        """
        with self.changed:
            deadline.wait(self.changed, lambda: self.answers or self.failure is not None)
            if self.answers and (
                self.has_ended or self.failure is not None or not deadline.has_passed()
            ):
                kind, content = self.answers.popleft()
                self._held_bytes -= len(content) + _ITEM_BYTES
                return kind, bytes(content)
            if self.failure is not None:
                raise HarnessError(self.failure)
            return None


class AgentLink:
    """A session with the agent of one guest. Several threads may use it at the same time.

    `program` is the agent's program, which the guest's loader requests as soon as the loader runs.
    A separate thread sends and receives, so a guest that does not read, or writes without end,
    blocks no caller. A checkpoint may be taken while no request is open, since nothing is in
    transit then.
    """

    def __init__(self, name: str, sock: socket.socket, program: bytes) -> None:
        self._name = name
        #: Returns, for an error message, why the guest may be late. Code that knows more about the
        #: guest than this class sets this function.
        self.explain_delay: Callable[[], str | None] = lambda: None
        #: Converts a command's limit in seconds to the command's deadline. Code that knows the
        #: guest's time sets this function. In that case the host ends the command, since the guest
        #: can't measure the time in which the host kept the guest waiting.
        self.guest_deadline: Callable[[float], Deadline] | None = None
        self._sock = sock
        self._program = program
        self._digest = hashlib.sha256(program).hexdigest()
        self._session = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._outbox: deque[memoryview] = deque()
        self._calls: dict[int, Call] = {}
        self._last_request = 0
        self._decoder = frames.Decoder(is_synced=False)
        self._boot_token: bytes | None = None
        self._welcome: Welcome | None = None
        self._welcomed = threading.Condition(self._lock)
        self._broken: str | None = None
        self._seen = "nothing at all"
        self._wake_ours, self._wake_theirs = socket.socketpair()
        self._hello_request = self._new_request()
        self._thread = threading.Thread(target=self._work, name=f"agent-{name}", daemon=True)
        with self._lock:
            self._send(self._render_hello())
        self._thread.start()

    # The thread

    def _work(self) -> None:
        try:
            reason = self._exchange()
        except frames.ProtocolError as error:
            reason = f"sent invalid data: {str(error).rstrip('.')}"
        except Exception as error:
            reason = f"could not be understood: {error!r}"
        with self._lock:
            self._break(f"The agent of machine '{self._name}' {reason}")

    def _exchange(self) -> str:
        """Send and receive until the socket ends. Return why the socket ended."""
        poll = select.poll()
        poll.register(self._wake_theirs, select.POLLIN)
        while True:
            with self._lock:
                events = select.POLLIN | (select.POLLOUT if self._outbox else 0)
                if self._broken is not None:
                    return "is closed"
            poll.register(self._sock, events)
            ready = dict(poll.poll())
            if self._wake_theirs.fileno() in ready:
                self._wake_theirs.recv(4096)
            seen = ready.get(self._sock.fileno(), 0)
            if seen & select.POLLOUT:
                with self._lock:
                    self._flush()
            if seen & ~select.POLLOUT:
                try:
                    data = self._sock.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                except OSError as error:
                    return f"can't be reached any more: {error}"
                if not data:
                    return "can't be reached any more: the machine has ended"
                for kind, request, payload in self._decoder.feed(data):
                    self._take(kind, request, payload)

    def _take(self, kind: int, request: int, payload: bytes) -> None:
        with self._lock:
            if kind == frames.BOOT:
                self._serve_program(payload)
            elif request == 0 and kind == frames.ERROR:
                self._break(
                    f"The agent of machine '{self._name}' reports a broken stream: {payload!r}"
                )
            elif request == self._hello_request:
                self._take_welcome(kind, payload)
            elif self._welcome is not None:
                call = self._calls.get(request)
                if call is not None:
                    call.put(kind, payload)

    def _serve_program(self, token: bytes) -> None:
        if token == self._boot_token:
            return
        self._boot_token = token
        had_agent = self._welcome is not None
        self._welcome = None
        self._seen = "its loader requested the program, and received it"
        if had_agent:
            for call in list(self._calls.values()):
                call.fail(
                    f"The agent of machine '{self._name}' restarted during {call.what}; it is not "
                    "known whether the request was carried out."
                )
                self._calls.pop(call.request, None)
        # Data that the earlier loader has not read is dropped: the new loader skips everything up
        # to `SYNC_FRAME`. So the queue has one program at most, even if a guest requests the
        # program repeatedly.
        self._outbox.clear()
        chunks = range(0, len(self._program), _PROGRAM_CHUNK)
        program = [
            frames.encode(frames.PROGRAM, 0, self._program[at : at + _PROGRAM_CHUNK])
            for at in chunks
        ]
        end = frames.encode(frames.PROGRAM_END, 0, self._digest.encode())
        self._send(b"".join([frames.SYNC_FRAME, *program, end]))
        self._send(self._render_hello())
        for call in self._calls.values():
            self._send(call.render(call.request))

    def _take_welcome(self, kind: int, payload: bytes) -> None:
        reply = frames.from_json(payload)
        if kind != frames.RESULT or reply.get("session") != self._session:
            return
        protocol = reply.get("protocol")
        if protocol not in _PROTOCOLS or reply.get("digest") != self._digest:
            self._break(
                f"The agent of machine '{self._name}' is of another version of the harness (digest "
                f"{reply.get('digest')}, expected {self._digest}); if the machine continues from a "
                "checkpoint, remove that checkpoint"
            )
            return
        self._welcome = Welcome(
            boot_id=str(reply.get("boot_id")),
            has_nonce=reply.get("has_nonce") is True,
            protocol=int(str(protocol)),
        )
        self._seen = f"its welcome message in boot {self._welcome.boot_id}"
        self._welcomed.notify_all()

    def _break(self, reason: str) -> None:
        if self._broken is None:
            self._broken = f"{reason}; last seen of the agent: {self._seen}."
        for call in self._calls.values():
            call.fail(f"{self._broken} That ended {call.what}.")
        self._calls.clear()
        self._welcome = None
        self._welcomed.notify_all()

    # Methods that send, whose callers hold the lock

    def _new_request(self) -> int:
        self._last_request = self._last_request % 0xFFFFFFFF + 1
        return self._last_request

    def _render_hello(self) -> bytes:
        hello = frames.to_json({"session": self._session})
        return frames.SYNC_FRAME + frames.encode(frames.HELLO, self._hello_request, hello)

    def _send(self, data: bytes) -> None:
        was_empty = not self._outbox
        self._outbox.append(memoryview(data))
        if was_empty:
            self._flush()
            if self._outbox:
                self._wake()

    def _flush(self) -> None:
        while self._outbox:
            data = self._outbox[0]
            try:
                count = self._sock.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                # The thread detects the end by reading, and reports it.
                self._outbox.clear()
                return
            if count == len(data):
                self._outbox.popleft()
            else:
                self._outbox[0] = data[count:]

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_ours.send(b"!", socket.MSG_DONTWAIT)

    # Requests

    @contextlib.contextmanager
    def call(
        self,
        what: str,
        render: Callable[[int], bytes],
        deadline: Deadline,
        *,
        is_early: bool = False,
    ) -> Iterator[Call]:
        """Send a request. Cancel the request if the `with` block ends before the answer.

        A request that `is_early` is sent before the agent's welcome message, and again once the
        agent is loaded.
        """
        if not is_early:
            self._wait_for_welcome(what, deadline)
        with self._lock:
            if self._broken is not None:
                raise HarnessError(self._broken)
            call = Call(self._new_request(), what, render)
            try:
                data = render(call.request)
            except frames.ProtocolError as error:
                raise HarnessError(
                    f"The harness can't send {what} to machine '{self._name}': {error}"
                ) from error
            self._calls[call.request] = call
            self._send(data)
        try:
            yield call
        except BaseException:
            self._abandon(call)
            raise
        finally:
            with self._lock:
                self._calls.pop(call.request, None)

    def _abandon(self, call: Call) -> None:
        """Cancel a call in the guest, since no thread waits for the answer any more."""
        if call.has_ended or call.failure is not None:
            return
        self.send(frames.CANCEL, call)
        deadline = Deadline.after(_CANCEL_S)
        with contextlib.suppress(HarnessError):
            answer = call.next(deadline)
            while answer is not None and answer[0] not in _LAST:
                answer = call.next(deadline)

    def send(self, kind: int, call: Call, payload: bytes = b"") -> None:
        with self._lock:
            if self._broken is None and call.request in self._calls:
                self._send(frames.encode(kind, call.request, payload))

    def give_credit(self, call: Call, count: int) -> None:
        """Record that the caller has consumed `count` more bytes of output, so the guest may send more."""
        call.consumed_bytes += count
        if call.consumed_bytes >= _CREDIT_STEP and not call.has_ended:
            self.send(frames.CREDIT, call, call.consumed_bytes.to_bytes(4, "big"))
            call.consumed_bytes = 0
            call.has_given_credit = True

    def _wait_for_welcome(self, what: str, deadline: Deadline) -> None:
        with self._lock:
            deadline.wait(
                self._welcomed, lambda: self._welcome is not None or self._broken is not None
            )
            if self._broken is not None:
                raise HarnessError(self._broken)
            if self._welcome is None:
                raise HarnessError(
                    f"The agent of machine '{self._name}' was not ready in time for {what}; last "
                    f"seen of the agent: {self._seen}. The console's log shows how far the guest's "
                    "boot came." + deadline.account()
                )

    def answer(self, call: Call, deadline: Deadline, seen: str = "no answer") -> bytes:
        """Wait for the answer of a call that streams no output."""
        while True:
            kind, payload = self.next(call, deadline, seen)
            if kind == frames.RESULT:
                return payload

    def next(self, call: Call, deadline: Deadline, seen: str) -> tuple[int, bytes]:
        """Return the next frame. Raises HarnessError for an error and at the deadline."""
        answer = call.next(deadline)
        if answer is None:
            reason = self.explain_delay()
            raise HarnessError(
                f"Machine '{self._name}' took too long over {call.what}; last seen: {seen}."
                + (f" Meanwhile, {reason}" if reason else "")
                + deadline.account()
            )
        if answer[0] == frames.ERROR:
            with self.reading(call):
                message = str(frames.from_json(answer[1]).get("message"))
            raise HarnessError(f"Machine '{self._name}' refused {call.what}: {message}.")
        return answer

    @contextlib.contextmanager
    def reading(self, call: Call) -> Iterator[None]:
        """Turn an error in parsing an answer into HarnessError, since the guest may send anything."""
        try:
            yield
        except (
            *(frames.ProtocolError, ValueError, LookupError, TypeError),
            *(ArithmeticError, RecursionError),
        ) as error:
            raise HarnessError(
                f"Machine '{self._name}' answered {call.what} in an unknown format: {error!r}."
            ) from error

    @property
    def welcome(self) -> Welcome | None:
        """Return the agent's welcome message, or None before its arrival."""
        with self._lock:
            return self._welcome

    @property
    def seen(self) -> str:
        """Describe the last frame that the agent sent."""
        return self._seen

    def wait_until_ready(self, deadline: Deadline) -> Welcome:
        """Wait for the agent's welcome message. Raises HarnessError if no such message arrives."""
        self._wait_for_welcome("its first request", deadline)
        welcome = self.welcome
        if welcome is None:
            raise HarnessError(
                f"The agent of machine '{self._name}' restarted directly after its welcome message."
            )
        return welcome

    def close(self) -> None:
        """End the link's thread, and with it all waits for the agent."""
        with self._lock:
            self._break(f"The connection to the agent of machine '{self._name}' was closed")
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self._wake()
        self._thread.join(5.0)
        for sock in (self._sock, self._wake_ours, self._wake_theirs):
            sock.close()
