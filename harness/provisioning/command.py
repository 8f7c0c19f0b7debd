"""Starts commands, on the host and in the guest; no other module uses `subprocess`."""

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
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

#: A process that `spawn` started.
ChildProcess: TypeAlias = "subprocess.Popen[bytes]"

#: The words of a command. A string is not allowed, since Python would treat each letter as a word.
Argv: TypeAlias = "list[str] | tuple[str, ...]"

#: How many characters of a command, and of each of its outputs, a message shows. The whole message
#: stays below 8 KiB.
_SHOWN_CHARACTERS = 2500
#: How many bytes one command may write before it is killed.
OUTPUT_BYTES = 64 << 20

#: An argument of `spawn` that connects a stream of the process to the caller by a pipe.
PIPE = subprocess.PIPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import IO


def argv_refusal(argv: object) -> str | None:
    """Return a sentence that says why `argv` is not a list of a command's words, else None.

    A type checker finds this error too, but not everybody runs a type checker.
    """
    if isinstance(argv, str):
        return (
            f"{argv!r} is a string, but a command is a list of words; write {argv.split()!r}, or "
            f"{['sh', '-c', argv]!r} for a line of shell code."
        )
    if not isinstance(argv, (list, tuple)):
        return (
            f"{argv!r} is no command; write a list of words, such as ['systemctl', 'start', 'x']."
        )
    if not argv:
        return "A command has at least one word, its program, but this list is empty."
    others = [word for word in argv if not isinstance(word, str)]
    if others:
        return f"Each word of a command is a string, but {others[0]!r} is not; write str(…)."
    return None


def require_argv(argv: object, field: str = "argv") -> None:
    """Raise TypeError, which names `field`, unless `argv` is a list of a command's words."""
    refusal = argv_refusal(argv)
    if refusal is not None:
        raise TypeError(f"{field}: {refusal}")


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """The result of a command.

    `exit_code` is negative if a signal killed the process, and 127 if the program was not found. If
    the time limit ended the process, `exit_code` is 124, as with `timeout(1)`, and `timed_out` is
    true. A command whose own process ended before the limit has not timed out, even if it left
    other processes. `wrote_too_much` is true if the command was killed because its output was
    longer than the limit.
    """

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    duration_s: float = 0.0
    timed_out: bool = False
    wrote_too_much: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.wrote_too_much

    def render(self, shown_characters: int = _SHOWN_CHARACTERS) -> str:
        """Render the text that every message about a failed command includes.

        The text contains the beginning of a long command, and the end of long output.
        """
        limit = " (time limit)" if self.timed_out else ""
        if self.wrote_too_much:
            limit = " (killed, since its output exceeded the limit)"
        return (
            f"command: {_beginning_of(shlex.join(self.argv), shown_characters)}\n"
            f"exit code: {self.exit_code}{limit}, after {self.duration_s:.1f} s\n"
            f"stdout: {_end_of(self.stdout, shown_characters) or '-'}\n"
            f"stderr: {_end_of(self.stderr, shown_characters) or '-'}"
        )

    def check(self, purpose: str) -> CommandResult:
        """Return this result, or raise CommandError for `purpose` if the command failed."""
        if not self.ok:
            raise CommandError(purpose, self)
        return self


def _beginning_of(text: str, most: int) -> str:
    left_out = len(text) - most
    if left_out <= 0:
        return text
    return f"{text[:most]} [{left_out} more characters are left out]"


def _end_of(text: str, most: int) -> str:
    left_out = len(text) - most
    if left_out <= 0:
        return text.strip()
    return f"[{left_out} earlier characters are left out] {text[left_out:].strip()}"


class CommandError(Exception):
    """A command failed, although it had to succeed. The message contains the end of long output."""

    def __init__(self, purpose: str, result: CommandResult) -> None:
        super().__init__(f"{purpose} failed.\n{result.render()}")
        self.purpose = purpose
        self.result = result

    @property
    def whole(self) -> str:
        """The message with the whole output."""
        return f"{self.purpose} failed.\n{self.result.render(sys.maxsize)}"

    def name_file(self, path: str) -> None:
        """Add a sentence to the message that names the file with the whole output."""
        self.args = (f"{self.args[0]}\nThe whole output is in '{path}'.",)


class Runner(Protocol):
    """Runs a command to its end; tests mock this interface."""

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run `argv` without a shell; `env` is added to the environment.

        For a failed command, the result is returned too, and no exception is raised. Raises
        TypeError if `argv` is a string and not a list of words.
        """
        ...


#: How long output is read after the command's own process has ended, if processes that it started
#: still hold the pipe open. The rest of a pipeline's output comes at once; a daemon holds the pipe
#: open.
_LEFT_BEHIND_S = 5.0
#: How many seconds a killed process group gets to close its output.
_KILLED_S = 1.0
_CHUNK = 1 << 16


class LocalRunner:
    """Runs commands on this machine, each in a process group that is killed at its time limit.

    Processes that outlive the command's own process and hold its output open, such as a daemon, may
    write for a few more seconds. Then they are killed if they are in the process group; processes
    in another session are not killed. A command that writes more than `most_output_bytes` is
    killed.
    """

    def __init__(self, *, most_output_bytes: int = OUTPUT_BYTES) -> None:
        self._most_output_bytes = most_output_bytes

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        require_argv(argv)
        started = time.monotonic()

        def result(
            exit_code: int,
            out: bytes | bytearray,
            err: bytes | bytearray,
            *,
            timed_out: bool = False,
            wrote_too_much: bool = False,
        ) -> CommandResult:
            return CommandResult(
                argv=tuple(argv),
                exit_code=exit_code,
                stdout=out.decode(errors="replace"),
                stderr=err.decode(errors="replace"),
                duration_s=time.monotonic() - started,
                timed_out=timed_out,
                wrote_too_much=wrote_too_much,
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
            return result(code, b"", str(error).encode(errors="replace"))
        except ValueError as error:
            # A word contains a NUL character.
            return result(126, b"", str(error).encode())
        try:
            exit_code, out, err = _finish(
                process,
                (stdin or "").encode(errors="surrogateescape"),
                timeout_s,
                self._most_output_bytes,
            )
        except BaseException:
            _kill_group(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)
            raise
        finally:
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        if len(out) + len(err) > self._most_output_bytes:
            return result(-signal.SIGKILL, out, err, wrote_too_much=True)
        if exit_code is None:
            return result(124, out, err, timed_out=True)
        return result(exit_code, out, err)


def _finish(
    process: subprocess.Popen[bytes], stdin: bytes, timeout_s: float, most_bytes: int
) -> tuple[int | None, bytearray, bytearray]:
    """Return exit code (None if the time limit ended `process`), stdout and stderr.

    Returns within a bounded time, even if another process holds the output open. A process that
    hangs in the kernel cannot be killed; it is reaped later, without waiting.
    """
    limit = time.monotonic() + timeout_s
    with contextlib.closing(_Pipes(process, stdin, most_bytes)) as pipes:
        pipes.transfer(limit, until_exit=True)
        pipes.transfer(min(limit, time.monotonic() + _LEFT_BEHIND_S))
        has_ended_itself = has_ended(process)
        if pipes.is_held or not has_ended_itself:
            # Kill the group before reaping the process, so that its pid is not reused meanwhile.
            _kill_group(process)
            pipes.transfer(time.monotonic() + _KILLED_S)
            if pipes.is_full:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED_S)
        exit_code = process.poll()
        return exit_code if has_ended_itself else None, pipes.out, pipes.err


class _Pipes:
    """Feeds the input of a process and reads its output.

    If another process holds the output open, `Popen.communicate` does not return when the process
    has ended. A second call of `communicate` after a time limit loses the remaining input.
    """

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, most_bytes: int) -> None:
        self.out, self.err = bytearray(), bytearray()
        self._most_bytes = most_bytes
        self._left = memoryview(stdin)
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
    def is_full(self) -> bool:
        """Return whether the output was longer than the limit."""
        return len(self.out) + len(self.err) > self._most_bytes

    @property
    def is_held(self) -> bool:
        """Return whether a process may still write output."""
        return bool(self._held)

    def close(self) -> None:
        self._watched.close()
        os.close(self._ending)

    def transfer(self, until: float, *, until_exit: bool = False) -> None:
        """Transfer data until the process has ended and its output is closed.

        With `until_exit`, the output need not be closed. The transfer also stops when the output is
        longer than the limit.
        """
        while not self.is_full and (not self._has_exited or (self._held and not until_exit)):
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
            # A ready pipe accepts at least PIPE_BUF bytes without blocking.
            count = os.write(pipe.fileno(), self._left[: select.PIPE_BUF])
        except BrokenPipeError:
            # It is not an error if a command, such as `true`, does not read its input.
            count = len(self._left)
        self._left = self._left[count:]
        if not self._left:
            self._watched.unregister(pipe)
            pipe.close()

    def _exited(self) -> None:
        self._watched.unregister(self._ending)
        self._has_exited = True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the group of `process`; do nothing if the process was reaped, since its pid may be reused."""
    if process.returncode is None and process.pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


#: If the parent died before the death signal was set, no signal is sent. The child, which then has
#: another parent, ends itself.
_UNLESS_ORPHANED = '[ "$PPID" = "$0" ] || exit 125; exec "$@"'


def has_ended(process: ChildProcess) -> bool:
    """Return whether `process` has ended, without reaping it, so that its pid is not reused."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end(process: ChildProcess, *, grace_s: float = 0.0) -> int:
    """Kill a spawned `process` unless it ends itself within `grace_s` seconds; return its exit code.

    The other processes of the process's group are killed in any case.
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
    argv: Argv,
    *,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = subprocess.DEVNULL,
    stderr: int | IO[bytes] | None = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> ChildProcess:
    """Start a long-lived process that is killed when this process dies for any reason.

    `setpriv --pdeathsig` (util-linux 2.33) sets the death signal, so no Python code runs between
    fork and exec. The kernel sends the signal when the *thread* that forked ends. So a single
    thread starts all processes, and lives as long as this process.

    Raises OSError if there is no `setpriv`.
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
        # The wait was interrupted while the other thread starts the process: kill it once it has
        # started.
        starting.add_done_callback(_kill_started)
        raise


@functools.cache
def _starter(pid: int) -> concurrent.futures.Executor:
    """Return the thread with which process `pid` starts its child processes.

    Each process needs its own thread, since a forked process does not inherit threads. The thread is
    never ended, since all processes that it started would end with it.
    """
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"starter-of-{pid}")


def _kill_started(starting: concurrent.futures.Future[ChildProcess]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().kill()
