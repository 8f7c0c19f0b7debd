"""The one door through which commands start, on the host and in the guest."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import select
import selectors
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
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import IO


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """What a finished command left.

    `exit_code` is negative for a death by signal, 127 where the program was not found, and
    124 where the time limit ended it (then `timed_out` is true too), as `timeout(1)` says it.
    A command whose own process ended before the limit has not timed out, whatever it left behind.
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


#: How long what a command left behind may hold its output, once its own process has ended: a
#: pipeline's last words come within moments, a daemon never lets go.
_LEFT_BEHIND_S = 5.0
#: How long a killed group may take to let go of its output.
_KILLED_S = 1.0
_CHUNK = 1 << 16


class LocalRunner:
    """Runs commands on this machine, each in a process group that dies with its time limit.

    What outlives a command's own process (a daemon that has its output, say) is not waited for
    beyond a few seconds. What of it is still in the group is killed then, if it holds output; a
    session of its own is let go.
    """

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
            exit_code, out, err = _finish(process, (stdin or "").encode(), timeout_s)
        except BaseException:
            _kill_group(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)
            raise
        finally:
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        if exit_code is None:
            return result(124, out, err, timed_out=True)
        return result(exit_code, out, err, timed_out=False)


def _finish(
    process: subprocess.Popen[bytes], stdin: bytes, timeout_s: float
) -> tuple[int | None, bytes, bytes]:
    """Return exit code, stdout and stderr of `process`; no code where the limit ended it.

    Returns in bounded time, also where something else holds its output, or where it hangs in the
    kernel and can't be killed: such a one is reaped when it ends, and nobody waits for that.
    """
    limit = time.monotonic() + timeout_s
    with contextlib.closing(_Talk(process, stdin)) as talk:
        talk.go_on(limit, until_exit=True)
        talk.go_on(min(limit, time.monotonic() + _LEFT_BEHIND_S))
        has_ended_itself = has_ended(process)
        if talk.is_held or not has_ended_itself:
            # It is not reaped before its group is killed, so that its number stays its own.
            _kill_group(process)
            talk.go_on(time.monotonic() + _KILLED_S)
        exit_code = process.poll()
        return exit_code if has_ended_itself else None, bytes(talk.out), bytes(talk.err)


class _Talk:
    """What a process is told and says.

    `Popen.communicate` does not tell that the process has ended while its output is held, and
    forgets input that is left when it is called again after a time limit.
    """

    def __init__(self, process: subprocess.Popen[bytes], told: bytes) -> None:
        self.out, self.err = bytearray(), bytearray()
        self._left = memoryview(told)
        self._held: list[IO[bytes]] = []
        self._has_exited = False
        self._watched = selectors.DefaultSelector()
        for pipe, into in ((process.stdout, self.out), (process.stderr, self.err)):
            if pipe is not None:
                self._held.append(pipe)
                self._watch(pipe, selectors.EVENT_READ, functools.partial(self._read, pipe, into))
        if process.stdin is not None:
            feed = functools.partial(self._feed, process.stdin)
            self._watch(process.stdin, selectors.EVENT_WRITE, feed)
        self._ending = os.pidfd_open(process.pid)
        self._watch(self._ending, selectors.EVENT_READ, self._exited)

    @property
    def is_held(self) -> bool:
        """Return whether somebody may still write output."""
        return bool(self._held)

    def close(self) -> None:
        self._watched.close()
        os.close(self._ending)

    def go_on(self, until: float, *, until_exit: bool = False) -> None:
        """Feed and read until the process has ended and, unless `until_exit`, all was said."""
        while not self._has_exited or (self._held and not until_exit):
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            for key, _ in self._watched.select(left_s):
                key.data()

    def _watch(self, file: IO[bytes] | int, events: int, act: Callable[[], None]) -> None:
        self._watched.register(file, events, act)

    def _read(self, pipe: IO[bytes], into: bytearray) -> None:
        chunk = os.read(pipe.fileno(), _CHUNK)
        into += chunk
        if not chunk:
            self._watched.unregister(pipe)
            self._held.remove(pipe)

    def _feed(self, pipe: IO[bytes]) -> None:
        try:
            # A pipe that is ready takes so much at once, and no call of it blocks.
            count = os.write(pipe.fileno(), self._left[: select.PIPE_BUF])
        except BrokenPipeError:
            # Nobody reads it, as with `true`: no fault of the command.
            count = len(self._left)
        self._left = self._left[count:]
        if not self._left:
            self._watched.unregister(pipe)
            pipe.close()

    def _exited(self) -> None:
        self._watched.unregister(self._ending)
        self._has_exited = True


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
