"""What the host asks of a guest's agent."""

from __future__ import annotations

import functools
import json
import os
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.agent import frames
from harness.errors import HarnessError
from harness.machine.agentlink import AgentLink
from harness.machine.snapshot import NodeSnapshot
from harness.provisioning.command import CommandResult
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from harness.machine.agentlink import Call, Welcome

#: What SIGKILL after SIGTERM and the way back may take beyond a command's own limit.
_GRACE_S = 25.0
_BARRIER_S = 30.0
#: What `run` keeps of a stream.
KEPT_BYTES = 256 << 20
#: Stdin and content up to this size go with the request itself.
_INLINE_BYTES = 32 << 10
_CREDIT_STEP = 256 << 10
_ENTROPY_BYTES = 64


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


def _ignore(_chunk: bytes) -> None:
    pass


class Agent:
    """A client of the agent in one guest; several threads may use it at once.

    `program` is the agent itself, which the guest's loader asks for once it runs. While no request
    is open, nothing is under way: then a checkpoint may be taken.
    """

    def __init__(self, name: str, sock: socket.socket, program: bytes) -> None:
        self._name = name
        self._link = AgentLink(name, sock, program)

    @property
    def link(self) -> AgentLink:
        """Return what carries the requests."""
        return self._link

    @property
    def welcome(self) -> Welcome | None:
        """Return what the agent said of itself; None while it has not."""
        return self._link.welcome

    def wait_until_ready(self, deadline: Deadline) -> Welcome:
        """Wait until the agent has said hello. Raises HarnessError with what was seen instead."""
        return self._link.wait_until_ready(deadline)

    def ping(self, deadline: Deadline) -> float:
        """Return the seconds of one round trip."""
        started = time.monotonic()
        render = functools.partial(frames.encode, frames.PING)
        with self._link.call("a ping", render, deadline) as call:
            self._link.answer(call, deadline)
        return time.monotonic() - started

    def remember(self, nonce: str, deadline: Deadline) -> None:
        """Give the agent a nonce that lies in its memory alone, and goes with its checkpoints."""
        self._link.ask(
            "the request to remember a nonce", frames.REMEMBER, {"nonce": nonce}, deadline
        )

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

        with self._link.call("the request to settle", render, deadline, is_early=True) as call:
            answer = self._link.answer(call, deadline, self._link.seen)
        round_trip_s = (time.time_ns() - sent_ns) / 1e9
        with self._link.reading(call):
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
        with self._link.call(
            what, functools.partial(_render_message, frames.RUN, body), deadline
        ) as call:
            feed = None if is_inline or stdin is None else _Feed(self._link, call, stdin)
            consumed, has_given_credit = 0, False
            while True:
                kind, payload = self._link.next(call, deadline, "it was still running")
                callback = callbacks.get(kind)
                if callback is not None:
                    callback(payload)
                    consumed += len(payload)
                    if consumed >= _CREDIT_STEP and not call.has_ended:
                        self._link.tell(frames.CREDIT, call, consumed.to_bytes(4, "big"))
                        consumed, has_given_credit = 0, True
                elif kind == frames.CREDIT and feed is not None:
                    feed.credit(int.from_bytes(payload, "big"))
                elif kind == frames.RESULT:
                    break
        if has_given_credit or feed is not None:
            # The guest has read all of ours once it answers this: nothing is left under way.
            self.ping(Deadline.after(_BARRIER_S))
        with self._link.reading(call):
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
        with self._link.call(
            what, functools.partial(_render_message, frames.READ, asked), deadline
        ) as call:
            while True:
                kind, payload = self._link.next(call, deadline, f"{size} bytes")
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
                    self._link.tell(frames.CREDIT, call, consumed.to_bytes(4, "big"))
                    consumed, has_given_credit = 0, True
        if has_given_credit:
            self.ping(Deadline.after(_BARRIER_S))
        with self._link.reading(call):
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
        with self._link.call(
            what, functools.partial(_render_message, frames.WRITE, body), deadline
        ) as call:
            feed = None if is_inline else _Feed(self._link, call, content)
            while True:
                kind, payload = self._link.next(call, deadline, "it was being written")
                if kind == frames.RESULT:
                    return
                if kind == frames.CREDIT and feed is not None:
                    feed.credit(int.from_bytes(payload, "big"))

    def wait_for_file(self, path: str, deadline: Deadline) -> None:
        """Wait until something exists at `path`; its folders need not exist yet."""
        asked = frames.to_json({"path": path})
        render = functools.partial(_render_message, frames.WAIT_FILE, asked)
        with self._link.call(f"the wait for '{path}'", render, deadline) as call:
            self._link.answer(call, deadline, "it was not there")

    def wait_for_unit(self, unit: str, deadline: Deadline, active: str = "active") -> UnitSeen:
        """Wait until systemd's `unit` is in the state `active`.

        Raises HarnessError at the deadline, and at once where the unit fails instead.
        """
        asked = frames.to_json({"unit": unit, "active": active})
        render = functools.partial(_render_message, frames.WAIT_UNIT, asked)
        seen = "no state at all"
        with self._link.call(f"the wait for '{unit}' to be {active}", render, deadline) as call:
            while True:
                kind, payload = self._link.next(call, deadline, seen)
                with self._link.reading(call):
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
            self._link.ask("the request for the node's state", frames.SNAPSHOT, asked, deadline)
        )

    def close(self) -> None:
        """End the link, and with it whatever somebody still waits for."""
        self._link.close()


def _render_message(kind: int, payload: bytes, request: int) -> bytes:
    return frames.encode_message(kind, request, payload)


class _Feed:
    """Streams bytes into a request, no more ahead of the guest than its window."""

    def __init__(self, link: AgentLink, call: Call, content: bytes) -> None:
        self._link = link
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
            self._link.tell(frames.DATA, self._call, bytes(chunk))
            if not self._rest:
                self._link.tell(frames.DATA_END, self._call)


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
