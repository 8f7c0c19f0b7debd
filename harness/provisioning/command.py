"""Starts commands, on a test host or inside a guest; no other module uses `subprocess`."""

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
    """Return a sentence that says why `argv` is not a list of words, or None if `argv` is valid.

    A type checker also refuses an `argv` that is not a list of words, but not everybody runs a type
    checker.
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
    true. A command whose own process ended before the time limit has not timed out, even if the
    command left other processes running. `wrote_too_much` is true if the command was killed because
    its output was longer than the limit.
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

        The text contains only the beginning of a long command, and only the end of a long output.
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
        """Return this result, or raise CommandError, which names `purpose`, if the command failed."""
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
    """A command failed, although it had to succeed.

    If the output is long, the message contains only the end of the output.
    """

    def __init__(self, purpose: str, result: CommandResult) -> None:
        super().__init__(f"{purpose} failed.\n{result.render()}")
        self.purpose = purpose
        self.result = result

    @property
    def whole(self) -> str:
        """Return the error message with the whole output of the command."""
        return f"{self.purpose} failed.\n{self.result.render(sys.maxsize)}"

    def name_file(self, path: str) -> None:
        """Add a sentence to the message: the file `path` contains the whole output."""
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

        If the command fails, its result is returned, and no exception is raised. Raises TypeError
        if `argv` is a string and not a list of words.
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
    """Runs each command on this machine in a process group, which is killed at the time limit.

    A process that outlives the command's own process and holds the output open, such as a daemon,
    may write for a few more seconds, and is then killed if it is in the process group. Processes in
    another session are not killed. A command that writes more than `most_output_bytes` is killed.
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
    """Return the exit code (None if the time limit ended `process`), stdout and stderr.

    Returns within a bounded time, even if another process holds the output open. A process that
    hangs in the kernel cannot be killed, so this function does not wait for the end of such a
    process.
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

    `Popen.communicate` would not return at the end of the process if another process holds the
    output open. After a time limit, a second call of `Popen.communicate` would lose the remaining
    input.
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
        """Return whether the output is longer than `most_bytes`."""
        return len(self.out) + len(self.err) > self._most_bytes

    @property
    def is_held(self) -> bool:
        """Return whether a process still holds stdout or stderr open."""
        return bool(self._held)

    def close(self) -> None:
        self._watched.close()
        os.close(self._ending)

    def transfer(self, until: float, *, until_exit: bool = False) -> None:
        """Transfer data until the time `until`, or until the process has closed its output.

        With `until_exit`, the transfer ends with the process, even if the output is still open. An
        output that is longer than the limit ends the transfer early.
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
    """Kill `process` unless it ends by itself within `grace_s` seconds; return its exit code.

    All other processes in the process group of `process` are killed in any case.
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
    """Start a long-lived process that is killed when the calling process dies for any reason.

    `setpriv --pdeathsig` (util-linux 2.33) sets the death signal, so no Python code runs between
    fork and exec. The kernel sends the death signal at the end of the *thread* that called fork. So
    a single thread starts all spawned processes, and this thread lives as long as the Python
    process.

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

    A forked process needs its own starter thread, since a forked process does not inherit threads.
    The starter thread never ends, since its end would kill all processes that the thread started.
    """
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"starter-of-{pid}")


def _kill_started(starting: concurrent.futures.Future[ChildProcess]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().kill()
