"""Fakes of a VM driver, a VM and a guest agent, which only record the calls of a lab."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from harness.errors import HarnessError
from harness.provisioning.command import CommandResult
from suites.unit.lab.drivers import StuckDriver
from suites.unit.lab.kept_alive import kept_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.gpu import Attachment
    from harness.machine.capacity.broker import Demand
    from harness.machine.description.spec import MachineSpec
    from harness.provisioning.wait import Deadline

PID = 4711


def limit_of(deadline: Deadline) -> int:
    """Return the limit of a new deadline, rounded up to 1 s, and to 15 s if it is over 15 s."""
    return _limit(deadline.remaining_s())


def _limit(seconds: float) -> int:
    step = 15 if seconds > 15 else 1
    return math.ceil(seconds / step) * step


@dataclass
class FakeAgent:
    """A fake guest agent: records requests in `noted`, and answers commands from `answers`.

    `answers` maps a word of a command to its stdout; the last such word of a command counts. Other
    commands print nothing. A command with a word of `refused` fails. If `hangs`, no request is answered.
    """

    noted: list[Any] = field(default_factory=list)
    nonce: str | None = None
    answers: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    hangs: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    link: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(explain_delay=None))
    stdin: dict[tuple[str, ...], bytes] = field(default_factory=dict)
    limits_s: dict[tuple[str, ...], int] = field(default_factory=dict)
    timeouts_s: dict[tuple[str, ...], int] = field(default_factory=dict)
    environments: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)

    def _note(self, *request: object) -> None:
        if self.hangs:
            raise HarnessError("The agent does not answer.")
        self.noted.append(request)

    def wait_until_ready(self, deadline: Deadline) -> None:
        self._note("ready", limit_of(deadline))

    def ping(self, deadline: Deadline) -> None:
        self._note("ping", limit_of(deadline))

    def settle(self, deadline: Deadline, *, hostname: str | None = None) -> SimpleNamespace:
        self._note("settle", limit_of(deadline), hostname)
        return SimpleNamespace(nonce=self.nonce)

    def remember(self, nonce: str, deadline: Deadline) -> None:
        self._note("remember", nonce, limit_of(deadline))

    def wait_for_file(self, path: str, deadline: Deadline) -> None:
        self._note("file", path, limit_of(deadline))

    def wait_for_unit(self, unit: str, deadline: Deadline) -> None:
        self._note("unit", unit, limit_of(deadline))

    def write_bytes(self, path: str, content: bytes, deadline: Deadline, mode: int = 0) -> None:
        self._note("write", path, mode, limit_of(deadline))
        self.files[path] = content

    def read_bytes(self, path: str, deadline: Deadline) -> bytes | None:
        self._note("read", path, limit_of(deadline))
        return self.files.get(path)

    def _answer(self, argv: Sequence[str]) -> tuple[str, int]:
        found = (self.answers[word] for word in reversed(argv) if word in self.answers)
        return next(found, ""), int(any(word in self.refused for word in argv))

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        deadline: Deadline | None = None,
    ) -> CommandResult:
        self._note("run", *argv)
        self.environments[tuple(argv)] = dict(env or {})
        self.timeouts_s[tuple(argv)] = _limit(timeout_s)
        self.limits_s[tuple(argv)] = _limit(timeout_s) if deadline is None else limit_of(deadline)
        if stdin is not None:
            self.stdin[tuple(argv)] = stdin.encode()
        stdout, code = self._answer(argv)
        return CommandResult(argv=tuple(argv), exit_code=code, stdout=stdout, stderr="")

    def stream(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        on_stdout: Callable[[bytes], None] = lambda _: None,
        on_stderr: Callable[[bytes], None] = lambda _: None,
    ) -> SimpleNamespace:
        self._note("stream", *argv)
        self.limits_s[tuple(argv)] = _limit(timeout_s)
        if stdin is not None:
            self.stdin[tuple(argv)] = stdin
        stdout, code = self._answer(argv)
        on_stdout(stdout.encode())
        if code:
            on_stderr(b" it is refused\xff\n")
        return SimpleNamespace(exit_code=code)

    def commands(self) -> list[tuple[str, ...]]:
        """Return the commands that the guest ran, in order."""
        return [tuple(each[1:]) for each in self.noted if each[0] == "run"]


class FakeConsole:
    """A fake console, on which each wait returns the next of `lines`."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.waits: list[tuple[str, int, str, Callable[[], str | None]]] = []
        self.deadlines: list[Deadline] = []
        self.taps: list[Callable[[bytes], None]] = []

    def wait_for(
        self,
        pattern: str,
        deadline: Deadline,
        *,
        what: str,
        failure: Callable[[], str | None],
    ) -> str:
        self.waits.append((pattern, limit_of(deadline), what, failure))
        self.deadlines.append(deadline)
        return self.lines.pop(0)

    def shows(self, output: bytes) -> None:
        for tap in self.taps:
            tap(output)

    def tail(self, lines: int = 20) -> str:
        return f"the last {lines} lines"

    @contextlib.contextmanager
    def tapped(self, tap: Callable[[bytes], None]) -> Iterator[None]:
        self.taps.append(tap)
        yield
        self.taps.remove(tap)


class FakeVm:
    """A fake VM, which records its calls in the same list as its agent."""

    def __init__(self, spec: MachineSpec, noted: list[Any], agent: FakeAgent) -> None:
        self.spec = spec
        self.noted = noted
        self.agent = agent
        self.console = FakeConsole()
        self.pid: int | None = PID
        self.is_running = True
        self.reason: str | None = None

    def plug(self, attachment: Attachment) -> None:
        self.noted.append(("plug", attachment.id))

    def unplug(self, device_id: str, deadline: Deadline) -> None:
        self.noted.append(("unplug", device_id, limit_of(deadline)))

    def plug_seed(self, seed: Path) -> None:
        self.noted.append(("plug seed", seed))

    def unplug_seed(self, deadline: Deadline) -> None:
        self.noted.append(("unplug seed", limit_of(deadline)))

    def wait_until_idle(self, deadline: Deadline) -> None:
        self.noted.append(("idle", limit_of(deadline)))

    def save(self, state: Path) -> None:
        self.noted.append(("save", state))

    def restore(self, state: Path) -> None:
        self.noted.append(("restore", state))

    @contextlib.contextmanager
    def saved_whole(self, state: Path) -> Iterator[None]:
        self.noted.append(("save whole", state))
        yield
        self.noted.append(("go on",))

    def restore_whole(self, state: Path) -> None:
        self.noted.append(("restore whole", state))

    def wait_for_power_off(self, deadline: Deadline) -> None:
        self.noted.append(("power off", limit_of(deadline)))

    def ssh_port(self) -> int:
        return 2222

    def failure(self) -> str | None:
        return self.reason

    def kill(self) -> None:
        self.noted.append(("kill",))


class FakeDriver(StuckDriver):
    """A driver of fake VMs with `agent` and console `lines`; calls `on_start` at each start."""

    def __init__(self, agent: FakeAgent) -> None:
        super().__init__()
        self.agent = agent
        self.on_start: Callable[[], object] = lambda: None
        self.vms: list[FakeVm] = []
        self.pid: int | None = PID
        self.lines: list[str] = []

    @override
    @kept_alive
    def machine(  # type: ignore[override]  # its machines are no processes
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[Attachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> Iterator[FakeVm]:
        ids = [attachment.id for attachment in attachments]
        self.agent.noted.append(("start", folder, ids, agent_program))
        vm = FakeVm(spec, self.agent.noted, self.agent)
        vm.pid = self.pid
        vm.console.lines = list(self.lines)
        self.vms.append(vm)
        self.on_start()
        try:
            yield vm
        finally:
            self.agent.noted.append(("end",))


class FakeBroker:
    """A fake broker, which grants each demand immediately and records it."""

    def __init__(self, noted: list[Any]) -> None:
        self.noted = noted

    @kept_alive
    def reserve(
        self,
        who: str,
        demand: Demand,
        *,
        deadline: Deadline,
        report: Callable[[str], None],
        cancelled: Callable[[], str | None],
    ) -> Iterator[SimpleNamespace]:
        if why := cancelled():
            raise HarnessError(why)
        report("waits for capacity")
        self.noted.append(("reserve", who, demand, limit_of(deadline)))
        yield SimpleNamespace(used_by=lambda pid: self.noted.append(("used by", pid)))
        self.noted.append(("release",))
