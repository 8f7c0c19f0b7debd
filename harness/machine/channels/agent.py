"""Sends the host's requests to the agent of a guest.

The module is long because each kind of request is one method of the same client.
"""

from __future__ import annotations

import io
import os
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.agent import frames
from harness.errors import HarnessError
from harness.limits import COMMAND_OUTPUT, GUEST_FILE
from harness.machine.channels.agent_link import AgentLink, message
from harness.machine.guest_time import GUEST_LIMIT_TIMES
from harness.provisioning.command import CommandResult, require_argv
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from harness.machine.channels.agent_link import Call, Welcome
    from harness.provisioning.command import Argv

#: Seconds added to a command's own limit, for SIGKILL after SIGTERM and for the answer.
_GRACE_S = 25.0
_BARRIER_S = 30.0
#: Stdin and file content up to this size are sent within the request.
_INLINE_BYTES = 32 << 10
#: The exit code of a command that was ended at its time limit.
_TIME_LIMIT = 124
_ENTROPY_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class SettleResult:
    """The result of giving a clone its own identity.

    `nonce` is the nonce that the agent was asked to remember, or None. The guest's clock was
    `clock_was_off_s` ahead of the host's clock (behind, if negative). The remaining error is at
    most `clock_error_s`.
    """

    nonce: str | None
    clock_was_off_s: float
    clock_error_s: float


@dataclass(frozen=True, kw_only=True)
class StreamResult:
    """The result of a command whose output went to callbacks, with fields as in `CommandResult`."""

    argv: tuple[str, ...]
    exit_code: int
    duration_s: float
    timed_out: bool


@dataclass(frozen=True, kw_only=True)
class UnitStatus:
    """The properties of a unit that systemd reports."""

    active: str
    sub: str
    result: str
    load: str

    @classmethod
    def from_json(cls, content: bytes) -> UnitStatus:
        status = frames.from_json(content)
        if "trouble" in status:
            return cls(active="unknown", sub=str(status["trouble"]), result="", load="")
        names = ("ActiveState", "SubState", "Result", "LoadState")
        active, sub, result, load = (str(status.get(name, "")) for name in names)
        return cls(active=active, sub=sub, result=result, load=load)

    @override
    def __str__(self) -> str:
        return f"{self.active} ({self.sub}), result '{self.result}', load state '{self.load}'"


class _CommandLimitError(Exception):
    """The time limit of a command has passed."""


def _ignore(_chunk: bytes) -> None:
    pass


class Agent:
    """A client of the agent in one guest. Several threads may use it at the same time.

    `program` is the agent's program, which the guest's loader requests as soon as the loader runs.
    A checkpoint may be taken while no request is open, since nothing is in transit then.
    """

    def __init__(self, name: str, sock: socket.socket, program: bytes) -> None:
        self._name = name
        self.link = AgentLink(name, sock, program)

    def wait_until_ready(self, deadline: Deadline) -> Welcome:
        """Wait for the agent's welcome message. Raises HarnessError if no such message arrives."""
        return self.link.wait_until_ready(deadline)

    def ping(self, deadline: Deadline) -> float:
        """Return the duration of one round trip in seconds."""
        started = time.monotonic()
        with self.link.call("a ping", message(frames.PING), deadline) as call:
            self.link.answer(call, deadline)
        return time.monotonic() - started

    def remember(self, nonce: str, deadline: Deadline) -> None:
        """Store a nonce in the memory of the agent, so that a checkpoint contains the nonce."""
        render = message(frames.REMEMBER, frames.to_json({"nonce": nonce}))
        with self.link.call("the request to store a random number", render, deadline) as call:
            self.link.answer(call, deadline)

    def settle(
        self,
        deadline: Deadline,
        *,
        hostname: str | None = None,
        instance_id: str | None = None,
    ) -> SettleResult:
        """Give a clone its own time, random numbers and name, in one round trip.

        The request is sent before the agent's welcome message, since it may be a clone's first
        request. The clone's clock is set to the time of this call.
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

        with self.link.call(
            "the request to set the time, random numbers and name of the restored guest",
            render,
            deadline,
            is_early=True,
        ) as call:
            answer = self.link.answer(call, deadline, self.link.seen)
        round_trip_s = (time.time_ns() - sent_ns) / 1e9
        with self.link.reading(call):
            reply = frames.from_json(answer)
            return SettleResult(
                nonce=None if reply["nonce"] is None else str(reply["nonce"]),
                clock_was_off_s=(int(str(reply["before_ns"])) - sent_ns) / 1e9,
                clock_error_s=round_trip_s,
            )

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        deadline: Deadline | None = None,
    ) -> CommandResult:
        """Run `argv` in the guest as root, in a process group that is killed at the time limit.

        If `deadline` is given, the host ends the command at the deadline, and `timeout_s` is only
        the guest's own limit. Raises HarnessError if the exit code is unknown, and LimitError if the
        output is longer than the limit `command-output-mib`.
        """
        require_argv(argv)
        kept = _Output(f"The command {shlex.join(argv)!r} in machine '{self._name}'")
        ended = self.stream(
            argv,
            timeout_s=timeout_s,
            stdin=None if stdin is None else stdin.encode(),
            env=env,
            on_stdout=kept.add_stdout,
            on_stderr=kept.add_stderr,
            deadline=deadline,
        )
        return CommandResult(
            argv=ended.argv,
            exit_code=ended.exit_code,
            stdout=kept.stdout.decode(errors="replace"),
            stderr=kept.stderr.decode(errors="replace"),
            duration_s=ended.duration_s,
            timed_out=ended.timed_out,
        )

    def stream(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        on_stdout: Callable[[bytes], None] = _ignore,
        on_stderr: Callable[[bytes], None] = _ignore,
        deadline: Deadline | None = None,
    ) -> StreamResult:
        """Run `argv`, and pass its output to callbacks as it arrives.

        If the link knows the guest's time, `timeout_s` is in guest time. In that case the host
        ends the command at the limit. The guest itself ends the command only after
        GUEST_LIMIT_TIMES times the limit.

        The callbacks run in the caller's thread. While a callback runs, the command blocks at its
        next output. An exception that a callback raises ends the command.
        """
        require_argv(argv)
        limit_s = timeout_s
        if deadline is None and self.link.guest_deadline is not None:
            deadline = self.link.guest_deadline(timeout_s)
            limit_s = timeout_s * GUEST_LIMIT_TIMES
        begun = time.monotonic()
        try:
            return self._stream(
                argv,
                limit_s=limit_s,
                ends=deadline,
                stdin=stdin,
                env=env,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
            )
        except _CommandLimitError:
            # If the agent answers, the guest has ended the command by now. If the agent hangs,
            # `ping` raises HarnessError.
            self.ping(Deadline.after(_GRACE_S))
            return StreamResult(
                argv=tuple(argv),
                exit_code=_TIME_LIMIT,
                duration_s=time.monotonic() - begun,
                timed_out=True,
            )

    def _stream(
        self,
        argv: Argv,
        *,
        limit_s: float,
        ends: Deadline | None,
        stdin: bytes | None,
        env: Mapping[str, str] | None,
        on_stdout: Callable[[bytes], None],
        on_stderr: Callable[[bytes], None],
    ) -> StreamResult:
        is_inline = stdin is None or len(stdin) <= _INLINE_BYTES
        form = "none" if stdin is None else "all" if is_inline else "more"
        head = frames.to_json(
            {"argv": list(argv), "env": dict(env or {}), "limit_s": limit_s, "stdin": form}
        )
        body = head + b"\n" + (stdin or b"" if is_inline else b"")
        deadline = Deadline.after(limit_s + _GRACE_S)
        callbacks = {frames.STDOUT: on_stdout, frames.STDERR: on_stderr}
        what = f"the command {shlex.join(argv)!r}"
        with self.link.call(what, message(frames.RUN, body), deadline) as call:
            feed = None if is_inline or stdin is None else _WindowedWriter(self.link, call, stdin)
            while True:
                if ends is not None and not call.wait(ends):
                    raise _CommandLimitError
                kind, payload = self.link.next(call, deadline, "it was still running")
                callback = callbacks.get(kind)
                if callback is not None:
                    callback(payload)
                    self.link.give_credit(call, len(payload))
                elif kind == frames.CREDIT and feed is not None:
                    feed.credit(payload)
                elif kind == frames.RESULT:
                    break
        if call.has_given_credit or feed is not None:
            # A guest that answers the ping has read everything sent before the ping, so nothing is
            # in transit.
            self.ping(Deadline.after(_BARRIER_S))
        with self.link.reading(call):
            result = frames.from_json(payload)
            return StreamResult(
                argv=tuple(argv),
                exit_code=int(str(result["exit_code"])),
                duration_s=float(str(result["duration_s"])),
                timed_out=bool(result["timed_out"]),
            )

    def read_bytes(self, path: str, deadline: Deadline) -> bytes | None:
        """Return a regular file's content, or None if the file does not exist."""
        asked = frames.to_json({"path": path})
        size, content = self._read(frames.READ, path, asked, deadline)
        return None if size is None else content

    def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], deadline: Deadline
    ) -> list[bytes]:
        """Return the bytes in `ranges` of a file or block device. A range is an offset and a length.

        Raises HarnessError if the file does not exist, or ends before the end of a range.
        """
        asked = frames.to_json({"path": path, "ranges": [list(each) for each in ranges]})
        _, content = self._read(frames.READ_RANGES, path, asked, deadline)
        if len(content) != sum(length for _, length in ranges):
            raise HarnessError(
                f"Machine '{self._name}' sent {len(content)} bytes of '{path}', but was asked for "
                f"{sum(length for _, length in ranges)}."
            )
        view, parts = memoryview(content), []
        for _, length in ranges:
            parts.append(bytes(view[:length]))
            view = view[length:]
        return parts

    def _read(
        self, kind: int, path: str, asked: bytes, deadline: Deadline
    ) -> tuple[int | None, bytes]:
        """Return the size that the agent reports, and the bytes that it sent."""
        what = f"the request to read '{path}'"
        # `BytesIO.getvalue` copies nothing.
        content = io.BytesIO()
        size = 0
        with self.link.call(what, message(kind, asked), deadline) as call:
            while True:
                answer, payload = self.link.next(call, deadline, f"{size} bytes")
                if answer == frames.RESULT:
                    break
                size += content.write(payload)
                if size > GUEST_FILE.bytes:
                    raise GUEST_FILE.error(
                        f"The file '{path}' of machine '{self._name}'",
                        remedy="Read the file with `agent.stream` and the command `cat`.",
                    )
                self.link.give_credit(call, len(payload))
        if call.has_given_credit:
            self.ping(Deadline.after(_BARRIER_S))
        with self.link.reading(call):
            found = frames.from_json(payload)["size"]
            reported = None if found is None else int(str(found))
        if reported is not None and reported != size:
            raise HarnessError(
                f"Machine '{self._name}' sent {size} bytes of '{path}', but reports {reported}."
            )
        return reported, content.getvalue()

    def write_bytes(
        self, path: str, content: bytes, deadline: Deadline, mode: int = 0o644
    ) -> None:
        """Write a file under a temporary name, and rename it to `path`. Create missing folders."""
        is_inline = len(content) <= _INLINE_BYTES
        head = frames.to_json({"path": path, "mode": mode, "has_more": not is_inline})
        body = head + b"\n" + (content if is_inline else b"")
        what = f"the request to write '{path}'"
        with self.link.call(what, message(frames.WRITE, body), deadline) as call:
            feed = None if is_inline else _WindowedWriter(self.link, call, content)
            while True:
                kind, payload = self.link.next(call, deadline, "it was being written")
                if kind == frames.RESULT:
                    return
                if kind == frames.CREDIT and feed is not None:
                    feed.credit(payload)

    def wait_for_file(self, path: str, deadline: Deadline) -> None:
        """Wait until something exists at `path`. The folders above `path` need not exist yet."""
        asked = frames.to_json({"path": path})
        render = message(frames.WAIT_FILE, asked)
        with self.link.call(f"the wait for '{path}'", render, deadline) as call:
            self.link.answer(call, deadline, "it was not there")

    def wait_for_unit(self, unit: str, deadline: Deadline, active: str = "active") -> UnitStatus:
        """Wait until systemd's `unit` is in the state `active`.

        Raises HarnessError at the deadline, or immediately if the unit fails.
        """
        asked = frames.to_json({"unit": unit, "active": active})
        render = message(frames.WAIT_UNIT, asked)
        seen = "no state at all"
        with self.link.call(f"the wait for '{unit}' to be {active}", render, deadline) as call:
            while True:
                kind, payload = self.link.next(call, deadline, seen)
                with self.link.reading(call):
                    found = UnitStatus.from_json(payload)
                seen = str(found)
                if kind == frames.RESULT:
                    break
        if found.active != active:
            raise HarnessError(
                f"The unit '{unit}' of machine '{self._name}' was expected to be {active}, but is "
                f"{seen}. `journalctl -u {unit}` in the guest shows why."
            )
        return found

    def close(self) -> None:
        """Close the link. Requests that are still waiting fail."""
        self.link.close()


class _WindowedWriter:
    """Streams bytes into a request within the guest's flow-control window."""

    def __init__(self, link: AgentLink, call: Call, content: bytes) -> None:
        self._link = link
        self._call = call
        self._rest = memoryview(content)
        self._window = frames.STDIN_WINDOW
        self._go_on()

    def credit(self, payload: bytes) -> None:
        self._window += int.from_bytes(payload[:4], "big")
        self._go_on()

    def _go_on(self) -> None:
        while self._rest and self._window > 0 and not self._call.has_ended:
            chunk = self._rest[: min(self._window, frames.MAX_PAYLOAD)]
            self._rest = self._rest[len(chunk) :]
            self._window -= len(chunk)
            self._link.send(frames.DATA, self._call, bytes(chunk))
            if not self._rest:
                self._link.send(frames.DATA_END, self._call)


class _Output:
    """Collects the output that `run` returns, up to a limit."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.stdout = bytearray()
        self.stderr = bytearray()

    def add_stdout(self, chunk: bytes) -> None:
        self.stdout += chunk
        self._check()

    def add_stderr(self, chunk: bytes) -> None:
        self.stderr += chunk
        self._check()

    def _check(self) -> None:
        if len(self.stdout) + len(self.stderr) > COMMAND_OUTPUT.bytes:
            raise COMMAND_OUTPUT.error(
                self._what, remedy="The command was ended; read its output with `agent.stream`."
            )
