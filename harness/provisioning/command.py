"""The one door through which commands start, on the host and in the guest."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import IO


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """What a finished command left.

    `exit_code` is negative for a death by signal, 127 where the program was not found, and
    124 where the time limit ended it (then `timed_out` is true too), as `timeout(1)` says it.
    """

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    duration_s: float = 0.0
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def render(self) -> str:
        """Render the block that every report of a failed command shows."""
        limit = " (time limit)" if self.timed_out else ""
        return (
            f"command: {shlex.join(self.argv)}\n"
            f"exit code: {self.exit_code}{limit}, after {self.duration_s:.1f} s\n"
            f"stdout: {self.stdout.strip() or '-'}\n"
            f"stderr: {self.stderr.strip() or '-'}"
        )

    def check(self, purpose: str) -> CommandResult:
        """Return this result, or raise CommandError that says what `purpose` failed."""
        if not self.ok:
            raise CommandError(purpose, self)
        return self


class CommandError(Exception):
    """A command that had to succeed did not."""

    def __init__(self, purpose: str, result: CommandResult) -> None:
        super().__init__(f"{purpose} failed.\n{result.render()}")
        self.purpose = purpose
        self.result = result


class Runner(Protocol):
    """Runs one command to its end; the boundary at which tests mock."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run `argv`, never through a shell; `env` is added to the environment.

        A failure of the command is a result, not an exception.
        """
        ...


class LocalRunner:
    """Runs commands on this machine, each in a process group that dies with its time limit."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        started = time.monotonic()

        def result(exit_code: int, out: bytes, err: bytes, *, timed_out: bool) -> CommandResult:
            return CommandResult(
                argv=tuple(argv),
                exit_code=exit_code,
                stdout=out.decode(errors="replace"),
                stderr=err.decode(errors="replace"),
                duration_s=time.monotonic() - started,
                timed_out=timed_out,
            )

        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            return result(code, b"", str(error).encode(), timed_out=False)
        try:
            out, err = process.communicate(
                None if stdin is None else stdin.encode(), timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            _kill_group(process)
            out, err = process.communicate()
            return result(124, out, err, timed_out=True)
        except BaseException:
            _kill_group(process)
            process.wait()
            raise
        return result(process.returncode, out, err, timed_out=False)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


Process: TypeAlias = "subprocess.Popen[bytes]"
"""A process that `spawn` started."""


def end(process: Process, *, grace_s: float = 0.0) -> int:
    """Return the exit code of `process`; kill its group if it lives on after `grace_s`."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(timeout=grace_s)
    _kill_group(process)
    return process.wait()


def spawn(
    argv: Sequence[str],
    *,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = subprocess.DEVNULL,
    stderr: int | IO[bytes] | None = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Process:
    """Start a long-lived process that is killed when this one dies, however it dies.

    `setpriv --pdeathsig` (util-linux 2.33) sets the death signal, so no Python code runs between
    fork and exec. The signal follows the *thread* that called: call from a thread that lives as
    long as the process should.
    """
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *argv],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        env=None if env is None else {**os.environ, **env},
        cwd=cwd,
        start_new_session=True,
    )
