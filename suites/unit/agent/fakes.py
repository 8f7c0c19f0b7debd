"""An agent's server over a socket pair, with fake processes, real terminals and a fake system."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.agent import frames
from harness.agent.port import PortDevice
from harness.agent.processes import Child, Processes, set_terminal_size
from harness.agent.server import Server
from harness.agent.system import System

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

FIRST_PID = 5_000_000
"""Above every real process id, which Linux keeps below 4194304."""


@dataclass(kw_only=True)
class Started:
    """A fake process that a test controls through its ends of the pipes."""

    argv: list[str]
    env: dict[str, str] | None
    fallback: list[str] | None = None
    pid: int
    stdin: int | None
    stdout: int
    stderr: int
    exit_pipe: int
    exit_code: int = 0
    signals: list[int] = field(default_factory=list)
    is_reaped: bool = False

    def says(self, text: bytes) -> None:
        os.write(self.stdout, text)

    def reads(self) -> bytes:
        assert self.stdin is not None
        return os.read(self.stdin, 1 << 20)

    def closes_output(self) -> None:
        for fd in (self.stdout, self.stderr):
            os.close(fd)

    def exits(self, exit_code: int = 0) -> None:
        """Exit while the output is still open."""
        self.exit_code = exit_code
        os.close(self.exit_pipe)

    def ends(self, exit_code: int = 0) -> None:
        self.closes_output()
        self.exits(exit_code)


class FakeProcesses(Processes):
    """A fake process table. A pipe in place of a pidfd is closed when its process ends."""

    def __init__(self) -> None:
        self.started: list[Started] = []
        self.refusal: OSError | None = None

    @override
    def spawn(self, argv: list[str], env: dict[str, str] | None, *, has_stdin: bool) -> Child:
        if self.refusal is not None:
            raise self.refusal
        out, child_out = os.pipe()
        err, child_err = os.pipe()
        pidfd, exit_pipe = os.pipe()
        child_in, stdin = os.pipe() if has_stdin else (None, None)
        if stdin is not None:
            os.set_blocking(stdin, False)
        pid = FIRST_PID + len(self.started)
        self.started.append(
            Started(
                argv=argv,
                env=env,
                pid=pid,
                stdin=child_in,
                stdout=child_out,
                stderr=child_err,
                exit_pipe=exit_pipe,
            )
        )
        return Child(pid, pidfd, stdin, out, err)

    @override
    def spawn_in_terminal(
        self,
        argvs: Sequence[list[str]],
        env: dict[str, str] | None,
        size: tuple[int, int],
        *,
        has_stdin: bool,
    ) -> Child:
        if self.refusal is not None:
            raise self.refusal
        master, slave = os.openpty()
        os.set_blocking(master, False)
        set_terminal_size(master, size)
        pidfd, exit_pipe = os.pipe()
        pid = FIRST_PID + len(self.started)
        self.started.append(
            Started(
                argv=argvs[0],
                env=env,
                fallback=argvs[-1] if len(argvs) > 1 else None,
                pid=pid,
                stdin=slave,
                stdout=slave,
                stderr=os.dup(slave),
                exit_pipe=exit_pipe,
            )
        )
        return Child(pid, pidfd, os.dup(master) if has_stdin else None, master, master)

    def _of(self, pid: int) -> Started:
        return self.started[pid - FIRST_PID]

    @override
    def signal_group(self, pid: int, number: int) -> None:
        # The loop reports a failed assertion to the host, so the signal is recorded before the assertion.
        self._of(pid).signals.append(number)
        assert not self._of(pid).is_reaped, "the kernel may have reused the process id"

    @override
    def reap(self, pid: int) -> int:
        self._of(pid).is_reaped = True
        return self._of(pid).exit_code


class FakeSystem(System):
    """Records the changes that the agent makes."""

    def __init__(self) -> None:
        super().__init__(root="/nowhere")
        self.wall = 1_000
        self.entropy = b""
        self.is_prepared = False
        self.hostname: str | None = None
        self.instance_id: str | None = None

    @override
    def boot_id(self) -> str:
        return "boot-1"

    @override
    def wall_ns(self) -> int:
        return self.wall

    @override
    def set_wall_ns(self, wall_ns: int) -> None:
        self.wall = wall_ns

    @override
    def add_entropy(self, entropy: bytes) -> None:
        self.entropy += entropy

    @override
    def prepare(self) -> None:
        self.is_prepared = True

    @override
    def set_hostname(self, hostname: str) -> None:
        self.hostname = hostname

    @override
    def set_instance_id(self, instance_id: str) -> None:
        self.instance_id = instance_id


class SwitchedDevice(PortDevice):
    """A port whose host may close and reopen its end, as with virtio-serial."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock: socket.socket | None = None
        self.plug(sock)

    def plug(self, sock: socket.socket) -> None:
        self._sock = sock
        super().__init__(sock.fileno())

    def unplug(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    @override
    def has_host(self) -> bool:
        return self._sock is not None and super().has_host()


class Bench:
    """A server that runs only in calls of the test, and the host's end of its port."""

    def __init__(self) -> None:
        self.processes = FakeProcesses()
        self.system = FakeSystem()
        self.host, guest = socket.socketpair()
        self.device = SwitchedDevice(guest)
        self.server = Server(
            self.device, processes=self.processes, system=self.system, digest="digest"
        )
        self._decoder = frames.Decoder(is_synced=False)

    def sends(self, kind: int, request: int, payload: bytes | dict[str, object] = b"") -> None:
        content = payload if isinstance(payload, bytes) else frames.to_json(payload)
        self.host.sendall(frames.encode_message(kind, request, content))

    def greets(self, session: str = "session-1") -> None:
        self.host.sendall(frames.SYNC_FRAME)
        self.sends(frames.HELLO, 1, {"session": session})

    def turns(self, rounds: int = 20) -> None:
        for _ in range(rounds):
            self.server.loop.run_once(0.0)

    def gets(self) -> list[tuple[int, int, bytes]]:
        """Run the server until it sends nothing for 20 rounds, and return all frames that it sent."""
        self.host.setblocking(False)
        got: list[tuple[int, int, bytes]] = []
        silent = 0
        while silent < 20:
            self.server.loop.run_once(0.0)
            data = b""
            with contextlib.suppress(BlockingIOError):
                data = self.host.recv(1 << 20)
            got.extend(self._decoder.feed(data))
            silent = 0 if data else silent + 1
        self.host.setblocking(True)
        return got

    def reconnects(self) -> None:
        self.host, guest = socket.socketpair()
        self._decoder = frames.Decoder(is_synced=False)
        self.device.plug(guest)

    def disconnects(self) -> None:
        self.host.close()
        self.turns()
        self.device.unplug()

    def close(self) -> None:
        self.host.close()
        self.device.unplug()


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


RUN = {"argv": ["tool", "--now"], "env": {"A": "1"}, "limit_s": 60, "stdin": "none"}


def start(bench: Bench, request: int = 2, **changes: object) -> Started:
    bench.sends(frames.RUN, request, frames.to_json({**RUN, **changes}) + b"\n")
    bench.turns()
    return bench.processes.started[-1]


def result_of(got: list[tuple[int, int, bytes]]) -> dict[str, object]:
    (payload,) = (payload for kind, _, payload in got if kind == frames.RESULT)
    answer = json.loads(payload)
    assert isinstance(answer, dict)
    answer.pop("duration_s", None)
    return answer


def error_of(got: list[tuple[int, int, bytes]]) -> str:
    (payload,) = (payload for kind, _, payload in got if kind == frames.ERROR)
    return str(json.loads(payload)["message"])


def passes(bench: Bench, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the loop's timers `seconds` into the past, and run the loop."""
    loop = bench.server.loop
    moved = {
        timer: (when - seconds, owner, call) for timer, (when, owner, call) in loop._timers.items()
    }
    monkeypatch.setattr(loop, "_timers", moved)
    bench.turns(2)
