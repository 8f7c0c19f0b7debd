"""The one door through which commands start, on the host and in the guest."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import select
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

#: A process that `spawn` started.
ChildProcess: TypeAlias = "subprocess.Popen[bytes]"

#: For `spawn`: give the caller the other end of a pipe.
PIPE = subprocess.PIPE

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
        with process:
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
    """Kill the group that `process` leads; once it was reaped, its number may be another's."""
    if process.returncode is None and process.pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


#: A parent that died before the death signal was set sends none; its child has another by then.
_UNLESS_ORPHANED = '[ "$PPID" = "$0" ] || exit 125; exec "$@"'


def has_ended(process: ChildProcess) -> bool:
    """Tell whether `process` has ended, and leave it unreaped, so that its number stays its own."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end(process: ChildProcess, *, grace_s: float = 0.0) -> int:
    """Return the exit code of a spawned `process`, which has `grace_s` seconds to end by itself.

    What is left of its group is killed then, in any case.
    """
    if process.returncode is None and grace_s:
        ending = os.pidfd_open(process.pid)
        poll = select.poll()
        poll.register(ending, select.POLLIN)
        poll.poll(grace_s * 1000)
        os.close(ending)
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
) -> ChildProcess:
    """Start a long-lived process that is killed when this one dies, however it dies.

    `setpriv --pdeathsig` (util-linux 2.33) sets the death signal, so no Python code runs between
    fork and exec. The signal follows the *thread* that forked, so one thread, which lives as long
    as this process, starts them all: a caller's own thread may end at any time.

    Raises OSError where there is no `setpriv`.
    """
    starting = _starter(os.getpid()).submit(
        subprocess.Popen,
        [
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *("sh", "-c", _UNLESS_ORPHANED, str(os.getpid())),
            *argv,
        ],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        env=None if env is None else {**os.environ, **env},
        cwd=cwd,
        start_new_session=True,
    )
    try:
        return starting.result()
    except BaseException:
        # Interrupted while the other thread was at it: nobody would ever end that process.
        starting.add_done_callback(_kill_started)
        raise


@functools.lru_cache(maxsize=1)
def _starter(pid: int) -> concurrent.futures.Executor:
    """Return the one thread of process `pid` that starts processes; a fork inherits no thread."""
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"starter-of-{pid}")


def _kill_started(starting: concurrent.futures.Future[ChildProcess]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().kill()
