"""Runs a long command, writes its output to a log, and reports each line as it is written."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from harness.host_programs import search_path
from harness.provisioning.command import spawn
from harness.provisioning.wait import Deadline, Observation, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import IO

    from harness.provisioning.command import Argv

#: A command that keeps printing may take this many times the normal limit.
MOST_TIMES = 4


@dataclass(frozen=True)
class OutputDeadline(Deadline):
    """A deadline that restarts at each line of output, since commands are slow on a busy host."""

    limit_s: float = 0.0
    latest: float = 0.0
    _heard: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, deadline: Deadline) -> OutputDeadline:
        """Return a deadline that equals `deadline` if the command prints nothing."""
        limit_s, clock = deadline.remaining_s(), deadline.clock
        latest = clock.monotonic() + MOST_TIMES * limit_s
        return cls(deadline.at, clock, limit_s=limit_s, latest=latest)

    def hear(self) -> None:
        """Record a line of output."""
        self._heard[:] = [self.clock.monotonic()]

    @override
    def remaining_s(self) -> float:
        at = max([self.at, *(heard + self.limit_s for heard in self._heard)])
        return max(0.0, min(at, self.latest) - self.clock.monotonic())


class LoggedRunner(Protocol):
    """A function that runs a long command to its end. Tests of the builder use another function."""

    def __call__(
        self,
        argv: Argv,
        *,
        log: Path,
        deadline: Deadline,
        on_line: Callable[[str], None],
    ) -> int:
        """Append the command's output to `log`, call `on_line` for each line, and return the exit code.

        Kills the command at the deadline, and then raises WaitTimeoutError.
        """
        ...


def run_logged(
    argv: Argv,
    *,
    log: Path,
    deadline: Deadline,
    on_line: Callable[[str], None],
) -> int:
    """Run `argv` so that it and its children are killed when this process ends, even by SIGKILL.

    The command leads a process group. A command that daemonises or mounts has to be wrapped in
    its own namespaces (`Privilege.wrap_in_namespaces` in harness.image.build.commands).
    """
    with log.open("ab") as output, log.open("rb") as reader:
        reader.seek(0, os.SEEK_END)
        lines = _LineReader(reader)
        process = spawn(argv, stdout=output, stderr=output, env={"PATH": search_path()})

        def poll() -> Observation[int]:
            code = process.poll()
            for line in lines.new(at_end=code is not None):
                on_line(line)
            return Observation(code, f"'{lines.last}'" if lines.last else "no output")

        try:
            return wait_for(f"'{argv[0]}' to end", poll, deadline, interval_s=0.2)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class _LineReader:
    """Splits the data appended to a file into lines."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._rest = b""
        self.last = ""

    def new(self, *, at_end: bool) -> list[str]:
        whole, newline, rest = (self._rest + self._source.read()).rpartition(b"\n")
        if at_end:
            whole, rest = whole + newline + rest, b""
        self._rest = rest
        lines = [line for line in whole.decode(errors="replace").splitlines() if line.strip()]
        if lines:
            self.last = lines[-1]
        return lines
