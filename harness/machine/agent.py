"""The host's end of the guest agent: requests over the socket of a virtio-serial port."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import select
import shlex
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.agent import PROTOCOL, frames
from harness.errors import HarnessError
from harness.machine.snapshot import NodeSnapshot
from harness.provisioning.command import CommandResult
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: What SIGKILL after SIGTERM and the way back may take beyond a command's own limit.
_GRACE_S = 25.0
#: How long a command that is given up may take to be gone.
_CANCEL_S = 2.0
_BARRIER_S = 30.0
_RECEIVE_BYTES = 1 << 20
#: What `run` keeps of a stream.
KEPT_BYTES = 256 << 20
#: Stdin and content up to this size go with the request itself.
_INLINE_BYTES = 32 << 10
_CREDIT_STEP = 256 << 10
_ENTROPY_BYTES = 64
_PROGRAM_CHUNK = 32 << 10


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """What an agent says of itself to a new client."""

    boot_id: str
    has_nonce: bool


@dataclass(frozen=True, kw_only=True)
class Settled:
    """How a guest took over its new identity.

    `nonce` is what the agent was told to remember, None where it was told nothing. The guest's
    clock was `clock_was_off_s` ahead of the host's (behind it, if negative); it is now off by
    `clock_error_s` at the most.
    """

    nonce: str | None
    clock_was_off_s: float
    clock_error_s: float
    round_trip_s: float


@dataclass(frozen=True, kw_only=True)
class StreamResult:
    """How a command ended whose output went to callbacks; as in `CommandResult`."""

    argv: tuple[str, ...]
    exit_code: int
    duration_s: float
    timed_out: bool


@dataclass(frozen=True, kw_only=True)
class UnitSeen:
    """A unit's properties of these names, as systemd tells them."""

    active: str
    sub: str
    result: str
    load: str

    @classmethod
    def from_json(cls, content: bytes) -> UnitSeen:
        told = frames.from_json(content)
        if "trouble" in told:
            return cls(active="unknown", sub=str(told["trouble"]), result="", load="")
        names = ("ActiveState", "SubState", "Result", "LoadState")
        active, sub, result, load = (str(told.get(name, "")) for name in names)
        return cls(active=active, sub=sub, result=result, load=load)

    @override
    def __str__(self) -> str:
        return f"{self.active} ({self.sub}), result '{self.result}', load state '{self.load}'"


class _Call:
    """A request in flight: what came for it and was not looked at yet."""

    def __init__(self, request: int, what: str, render: Callable[[int], bytes]) -> None:
        self.request = request
        self.what = what
        self.render = render
        self.answers: deque[tuple[int, bytes]] = deque()
        self.parts = b""
        self.failure: str | None = None
        self.has_ended = False
        #: Whether it goes out before the agent has said hello, and again should it start anew.
        self.is_early = False
        self.changed = threading.Condition()

    def put(self, kind: int, payload: bytes) -> None:
        with self.changed:
            if kind == frames.MORE:
                self.parts += payload
                if len(self.parts) > frames.MAX_MESSAGE:
                    raise frames.ProtocolError(f"An answer to {self.what} has no end.")
                return
            if self.parts:
                payload, self.parts = self.parts + payload, b""
            self.has_ended = kind in {frames.RESULT, frames.ERROR}
            self.answers.append((kind, payload))
            self.changed.notify()

    def fail(self, reason: str) -> None:
        with self.changed:
            if not self.has_ended and self.failure is None:
                self.failure = reason
                self.changed.notify()

    def next(self, deadline: Deadline) -> tuple[int, bytes] | None:
        """Return what came next, None at the deadline; what came before a failure comes first."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.answers or self.failure is not None, deadline.remaining_s()
            )
            if self.answers:
                return self.answers.popleft()
            if self.failure is not None:
                raise HarnessError(self.failure)
            return None


def _ignore(_chunk: bytes) -> None:
    pass


class Agent:
    """A client of the agent in one guest; several threads may use it at once.

    `program` is the agent itself, which the guest's loader asks for once it runs. One thread of
    its own sends and receives, so that neither a guest that does not read nor one that writes
    without end stops anybody. While no request is open, nothing is under way: then a checkpoint
    may be taken.
    """

    def __init__(self, name: str, sock: socket.socket, program: bytes) -> None:
        self._name = name
        #: Says why the guest may be late, for a message; whoever knows more than the agent sets it.
        self.explain_delay: Callable[[], str | None] = lambda: None
        self._sock = sock
        self._program = program
        self._digest = hashlib.sha256(program).hexdigest()
        self._session = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._outbox: deque[memoryview] = deque()
        self._calls: dict[int, _Call] = {}
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
            reason = f"sent what no agent sends: {error}"
        except Exception as error:
            reason = f"could not be understood: {error!r}"
        with self._lock:
            self._break(f"The agent of machine '{self._name}' {reason}")

    def _exchange(self) -> str:
        """Send and receive until the socket ends; return why it did."""
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
                self._break(f"The agent of machine '{self._name}' lost the thread: {payload!r}")
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
        self._seen = "its loader asked for the program, and got it"
        if had_agent:
            for call in list(self._calls.values()):
                call.fail(
                    f"The agent of machine '{self._name}' restarted during {call.what}; whether "
                    "that was done is not known."
                )
                self._calls.pop(call.request, None)
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
        told = frames.from_json(payload)
        if kind != frames.RESULT or told.get("session") != self._session:
            return
        if told.get("protocol") != PROTOCOL or told.get("digest") != self._digest:
            self._break(
                f"Machine '{self._name}' runs another agent than this harness has "
                f"({told.get('digest')}, not {self._digest}), as an old checkpoint does; remove "
                "the checkpoint."
            )
            return
        self._welcome = Welcome(
            boot_id=str(told.get("boot_id")), has_nonce=told.get("has_nonce") is True
        )
        self._seen = f"it said hello in boot {self._welcome.boot_id}"
        self._welcomed.notify_all()

    def _break(self, reason: str) -> None:
        if self._broken is None:
            self._broken = f"{reason}; last seen of it: {self._seen}."
        for call in self._calls.values():
            call.fail(f"{self._broken} That ended {call.what}.")
        self._calls.clear()
        self._welcome = None
        self._welcomed.notify_all()

    # Sending; the lock is held

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
                # The thread finds out by reading, and says so.
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
    def _call(
        self,
        what: str,
        render: Callable[[int], bytes],
        deadline: Deadline,
        *,
        is_early: bool = False,
    ) -> Iterator[_Call]:
        """Send a request; whatever ends the block before its answer came cancels it."""
        if not is_early:
            self._wait_for_welcome(what, deadline)
        with self._lock:
            if self._broken is not None:
                raise HarnessError(self._broken)
            call = _Call(self._new_request(), what, render)
            call.is_early = is_early
            try:
                data = render(call.request)
            except frames.ProtocolError as error:
                raise HarnessError(
                    f"Machine '{self._name}' can't be sent {what}: {error}"
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

    def _abandon(self, call: _Call) -> None:
        """End what the guest does for a call that nobody waits for any more."""
        if call.has_ended or call.failure is not None:
            return
        self._tell(frames.CANCEL, call)
        deadline = Deadline.after(_CANCEL_S)
        with contextlib.suppress(HarnessError):
            answer = call.next(deadline)
            while answer is not None and answer[0] not in {frames.RESULT, frames.ERROR}:
                answer = call.next(deadline)

    def _tell(self, kind: int, call: _Call, payload: bytes = b"") -> None:
        with self._lock:
            if self._broken is None and call.request in self._calls:
                self._send(frames.encode(kind, call.request, payload))

    def _wait_for_welcome(self, what: str, deadline: Deadline) -> None:
        with self._lock:
            self._welcomed.wait_for(
                lambda: self._welcome is not None or self._broken is not None,
                deadline.remaining_s(),
            )
            if self._broken is not None:
                raise HarnessError(self._broken)
            if self._welcome is None:
                raise HarnessError(
                    f"The agent of machine '{self._name}' was not ready in time for {what}; last "
                    f"seen of it: {self._seen}. The console's log says how far the guest came."
                )

    def _answer(self, call: _Call, deadline: Deadline, seen: str = "no answer") -> bytes:
        """Wait for the answer of a call that streams nothing."""
        while True:
            kind, payload = self._next(call, deadline, seen)
            if kind == frames.RESULT:
                return payload

    def _next(self, call: _Call, deadline: Deadline, seen: str) -> tuple[int, bytes]:
        """Return what comes next; raises HarnessError at an error and at the deadline."""
        answer = call.next(deadline)
        if answer is None:
            reason = self.explain_delay()
            raise HarnessError(
                f"Machine '{self._name}' took too long over {call.what}; last seen: {seen}."
                + (f" Meanwhile, {reason}" if reason else "")
            )
        if answer[0] == frames.ERROR:
            with self._reading(call):
                message = frames.from_json(answer[1]).get("message")
            raise HarnessError(f"Machine '{self._name}' refused {call.what}: {message}.")
        return answer

    @contextlib.contextmanager
    def _reading(self, call: _Call) -> Iterator[None]:
        """Take an answer apart, whatever a damaged guest put into it."""
        try:
            yield
        except (frames.ProtocolError, ValueError, KeyError, TypeError) as error:
            raise HarnessError(
                f"Machine '{self._name}' gave {call.what} an answer that no agent gives: "
                f"{error!r}."
            ) from error

    def _ask(self, what: str, kind: int, asked: Mapping[str, object], deadline: Deadline) -> bytes:
        def render(request: int) -> bytes:
            return frames.encode_message(kind, request, frames.to_json(asked))

        with self._call(what, render, deadline) as call:
            return self._answer(call, deadline)

    # The verbs

    @property
    def welcome(self) -> Welcome | None:
        """Return what the agent said of itself; None while it has not."""
        with self._lock:
            return self._welcome

    def wait_until_ready(self, deadline: Deadline) -> Welcome:
        """Wait until the agent has said hello. Raises HarnessError with what was seen instead."""
        self._wait_for_welcome("its first request", deadline)
        welcome = self.welcome
        if welcome is None:
            raise HarnessError(f"The agent of machine '{self._name}' restarted at once.")
        return welcome

    def ping(self, deadline: Deadline) -> float:
        """Return the seconds of one round trip."""
        started = time.monotonic()
        render = functools.partial(frames.encode, frames.PING)
        with self._call("a ping", render, deadline) as call:
            self._answer(call, deadline)
        return time.monotonic() - started

    def remember(self, nonce: str, deadline: Deadline) -> None:
        """Give the agent a nonce that lies in its memory alone, and goes with its checkpoints."""
        self._ask("the request to remember a nonce", frames.REMEMBER, {"nonce": nonce}, deadline)

    def settle(
        self,
        deadline: Deadline,
        *,
        hostname: str | None = None,
        instance_id: str | None = None,
    ) -> Settled:
        """Give a clone a time, random numbers and a name of its own, in one round trip.

        It goes out at once, whether the agent has said hello or not, so it may be the first that
        a clone hears. The time that it carries is that of this call.
        """
        sent_ns = 0

        def render(request: int) -> bytes:
            nonlocal sent_ns
            sent_ns = time.time_ns()
            asked = {
                "wall_ns": sent_ns,
                "entropy": os.urandom(_ENTROPY_BYTES).hex(),
                "hostname": hostname,
                "instance_id": instance_id,
            }
            return frames.encode(frames.SETTLE, request, frames.to_json(asked))

        with self._call("the request to settle", render, deadline, is_early=True) as call:
            answer = self._answer(call, deadline, self._seen)
        round_trip_s = (time.time_ns() - sent_ns) / 1e9
        with self._reading(call):
            told = json.loads(answer)
            return Settled(
                nonce=None if told["nonce"] is None else str(told["nonce"]),
                clock_was_off_s=(int(told["before_ns"]) - sent_ns) / 1e9,
                clock_error_s=round_trip_s,
                round_trip_s=round_trip_s,
            )

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run `argv` in the guest as root, in a process group that dies with the time limit.

        Raises HarnessError where the guest did not say how it ended, and where its output is
        longer than 256 MiB.
        """
        kept = {frames.STDOUT: _Kept(self._name, argv), frames.STDERR: _Kept(self._name, argv)}
        ended = self.stream(
            argv,
            timeout_s=timeout_s,
            stdin=None if stdin is None else stdin.encode(),
            env=env,
            on_stdout=kept[frames.STDOUT].add,
            on_stderr=kept[frames.STDERR].add,
        )
        return CommandResult(
            argv=ended.argv,
            exit_code=ended.exit_code,
            stdout=kept[frames.STDOUT].text(),
            stderr=kept[frames.STDERR].text(),
            duration_s=ended.duration_s,
            timed_out=ended.timed_out,
        )

    def stream(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        on_stdout: Callable[[bytes], None] = _ignore,
        on_stderr: Callable[[bytes], None] = _ignore,
    ) -> StreamResult:
        """Run `argv`, and hand its output on as it comes.

        The callbacks run in the caller's thread; while one takes its time, the command waits at
        its next output. What a callback raises ends the command.
        """
        is_inline = stdin is None or len(stdin) <= _INLINE_BYTES
        form = "none" if stdin is None else "all" if is_inline else "more"
        head = frames.to_json(
            {"argv": list(argv), "env": dict(env or {}), "limit_s": timeout_s, "stdin": form}
        )
        body = head + b"\n" + (stdin or b"" if is_inline else b"")
        deadline = Deadline.after(timeout_s + _GRACE_S)
        callbacks = {frames.STDOUT: on_stdout, frames.STDERR: on_stderr}
        what = f"the command {shlex.join(argv)!r}"
        with self._call(
            what, functools.partial(_render_message, frames.RUN, body), deadline
        ) as call:
            feed = None if is_inline or stdin is None else _Feed(self, call, stdin)
            consumed, has_given_credit = 0, False
            while True:
                kind, payload = self._next(call, deadline, "it was still running")
                callback = callbacks.get(kind)
                if callback is not None:
                    callback(payload)
                    consumed += len(payload)
                    if consumed >= _CREDIT_STEP and not call.has_ended:
                        self._tell(frames.CREDIT, call, consumed.to_bytes(4, "big"))
                        consumed, has_given_credit = 0, True
                elif kind == frames.CREDIT and feed is not None:
                    feed.credit(int.from_bytes(payload, "big"))
                elif kind == frames.RESULT:
                    break
        if has_given_credit or feed is not None:
            # The guest has read all of ours once it answers this: nothing is left under way.
            self.ping(Deadline.after(_BARRIER_S))
        with self._reading(call):
            told = json.loads(payload)
            return StreamResult(
                argv=tuple(argv),
                exit_code=int(told["exit_code"]),
                duration_s=float(told["duration_s"]),
                timed_out=bool(told["timed_out"]),
            )

    def read_bytes(self, path: str, deadline: Deadline) -> bytes | None:
        """Return a regular file's content, None where there is none."""
        what = f"the request to read '{path}'"
        asked = frames.to_json({"path": path})
        chunks: list[bytes] = []
        size, consumed, has_given_credit = 0, 0, False
        with self._call(
            what, functools.partial(_render_message, frames.READ, asked), deadline
        ) as call:
            while True:
                kind, payload = self._next(call, deadline, f"{size} bytes")
                if kind == frames.RESULT:
                    break
                chunks.append(payload)
                size += len(payload)
                consumed += len(payload)
                if size > KEPT_BYTES:
                    raise HarnessError(
                        f"The file '{path}' of machine '{self._name}' is longer than "
                        f"{KEPT_BYTES >> 20} MiB; take it by `stream` with `cat`."
                    )
                if consumed >= _CREDIT_STEP and not call.has_ended:
                    self._tell(frames.CREDIT, call, consumed.to_bytes(4, "big"))
                    consumed, has_given_credit = 0, True
        if has_given_credit:
            self.ping(Deadline.after(_BARRIER_S))
        with self._reading(call):
            told_size = json.loads(payload)["size"]
        if told_size is None:
            return None
        if told_size != size:
            raise HarnessError(
                f"Machine '{self._name}' sent {size} bytes of '{path}', but says {told_size}."
            )
        return b"".join(chunks)

    def write_bytes(
        self, path: str, content: bytes, deadline: Deadline, mode: int = 0o644
    ) -> None:
        """Write a file beside its target and rename it into place, its folders made as needed."""
        is_inline = len(content) <= _INLINE_BYTES
        head = frames.to_json({"path": path, "mode": mode, "has_more": not is_inline})
        body = head + b"\n" + (content if is_inline else b"")
        what = f"the request to write '{path}'"
        with self._call(
            what, functools.partial(_render_message, frames.WRITE, body), deadline
        ) as call:
            feed = None if is_inline else _Feed(self, call, content)
            while True:
                kind, payload = self._next(call, deadline, "it was being written")
                if kind == frames.RESULT:
                    return
                if kind == frames.CREDIT and feed is not None:
                    feed.credit(int.from_bytes(payload, "big"))

    def wait_for_file(self, path: str, deadline: Deadline) -> None:
        """Wait until something exists at `path`; its folders need not exist yet."""
        asked = frames.to_json({"path": path})
        render = functools.partial(_render_message, frames.WAIT_FILE, asked)
        with self._call(f"the wait for '{path}'", render, deadline) as call:
            self._answer(call, deadline, "it was not there")

    def wait_for_unit(self, unit: str, deadline: Deadline, active: str = "active") -> UnitSeen:
        """Wait until systemd's `unit` is in the state `active`.

        Raises HarnessError at the deadline, and at once where the unit fails instead.
        """
        asked = frames.to_json({"unit": unit, "active": active})
        render = functools.partial(_render_message, frames.WAIT_UNIT, asked)
        seen = "no state at all"
        with self._call(f"the wait for '{unit}' to be {active}", render, deadline) as call:
            while True:
                kind, payload = self._next(call, deadline, seen)
                with self._reading(call):
                    found = UnitSeen.from_json(payload)
                seen = str(found)
                if kind == frames.RESULT:
                    break
        if found.active != active:
            raise HarnessError(
                f"The unit '{unit}' of machine '{self._name}' was expected to be {active}, but is "
                f"{seen}. `journalctl -u {unit}` there says why."
            )
        return found

    def snapshot(self, paths: Sequence[str], deadline: Deadline) -> NodeSnapshot:
        """Take the node's state, and that of all that the glob patterns `paths` match."""
        asked = {"paths": list(paths)}
        return NodeSnapshot.from_json(
            self._ask("the request for the node's state", frames.SNAPSHOT, asked, deadline)
        )

    def close(self) -> None:
        """End the thread, and with it whatever somebody still waits for."""
        with self._lock:
            self._break(f"The connection to the agent of machine '{self._name}' was closed")
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self._wake()
        self._thread.join(5.0)
        for sock in (self._sock, self._wake_ours, self._wake_theirs):
            sock.close()


def _render_message(kind: int, payload: bytes, request: int) -> bytes:
    return frames.encode_message(kind, request, payload)


class _Feed:
    """Streams bytes into a request, no more ahead of the guest than its window."""

    def __init__(self, agent: Agent, call: _Call, content: bytes) -> None:
        self._agent = agent
        self._call = call
        self._rest = memoryview(content)
        self._window = frames.STDIN_WINDOW
        self._go_on()

    def credit(self, count: int) -> None:
        self._window += count
        self._go_on()

    def _go_on(self) -> None:
        while self._rest and self._window > 0 and not self._call.has_ended:
            chunk = self._rest[: min(self._window, frames.MAX_PAYLOAD)]
            self._rest = self._rest[len(chunk) :]
            self._window -= len(chunk)
            self._agent._tell(frames.DATA, self._call, bytes(chunk))  # noqa: SLF001
            if not self._rest:
                self._agent._tell(frames.DATA_END, self._call)  # noqa: SLF001


class _Kept:
    """A stream as `run` keeps it."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self._name = name
        self._argv = argv
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > KEPT_BYTES:
            raise HarnessError(
                f"The command {shlex.join(self._argv)!r} in machine '{self._name}' wrote more "
                f"than {KEPT_BYTES >> 20} MiB, and was ended; take its output by `stream`."
            )
        self._chunks.append(chunk)

    def text(self) -> str:
        return b"".join(self._chunks).decode(errors="replace")
