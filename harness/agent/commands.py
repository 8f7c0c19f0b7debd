"""Runs one command in its own process group, with pipes and a time limit, and reports the result."""

from __future__ import annotations

import errno
import os
import signal
from collections import deque

from .frames import MAX_PAYLOAD, STDERR, STDOUT
from .loop import READABLE, WRITABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop
    from .processes import Child, Processes

KILL_AFTER_S = 5.0
"""Seconds between SIGTERM at the time limit and SIGKILL, as with `timeout --kill-after=5`."""
_UNKILLABLE_S = 1.0
_TIME_LIMIT = 124
#: Errors with which the kernel refuses a new process, whichever program the process would run.
_OUT_OF_RESOURCES = frozenset({errno.ENOMEM, errno.EAGAIN, errno.ENFILE, errno.EMFILE})


class Sink:
    """Receives the output and the exit code of a command; the base class discards both."""

    def has_room(self) -> bool:
        return True

    def write(self, kind: int, chunk: bytes) -> None:
        """Receive a part of the command's output.

        `kind` is the kind of the frame that carries the output to the host.
        """

    def took_stdin(self, count: int) -> None:
        """Record that the command has read `count` more bytes."""

    def ended(self, exit_code: int, *, timed_out: bool) -> None:
        """Note that the command has ended."""


class CapturedOutput(Sink):
    """Captures the stdout of a command that the agent itself runs."""

    def __init__(self, on_end: Callable[[int, bytes], None]) -> None:
        self._stdout = bytearray()
        self._on_end = on_end

    def write(self, kind: int, chunk: bytes) -> None:
        if kind == STDOUT:
            self._stdout += chunk

    def ended(self, exit_code: int, *, timed_out: bool) -> None:  # noqa: ARG002
        self._on_end(exit_code, bytes(self._stdout))


class Command:
    """A running command.

    The command ends when its process has ended and every process has closed the command's stdout
    and stderr. At the time limit, the command's whole process group gets SIGTERM, and
    `KILL_AFTER_S` seconds later SIGKILL. The agent reaps the leader of the process group last:
    until then, the kernel cannot reuse the leader's PID, which identifies the group.
    """

    _LINE_END = "\n"

    def __init__(
        self,
        loop: Loop,
        processes: Processes,
        sink: Sink,
        argv: list[str],
        *,
        env: dict[str, str] | None,
        limit_s: float,
        stdin: bytes | None,
        has_more_stdin: bool = False,
    ) -> None:
        """Start `argv`. Raises OSError if the guest lacks the resources to start a process."""
        self._loop = loop
        self._processes = processes
        self._sink = sink
        self._outputs: dict[int, int] = {}
        self._paused: set[int] = set()
        self._stdin: deque[memoryview] = deque()
        self._stdin_fd: int | None = None
        self._is_stdin_watched = False
        self._has_more_stdin = has_more_stdin
        self._child: Child | None = None
        self._has_exited = False
        self._has_timed_out = False
        self._timer = 0
        try:
            child = self._spawn(argv, env, has_stdin=stdin is not None)
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                raise
            self._refuse(argv, error)
            return
        self._child = child
        # In a terminal, stdout and stderr are one descriptor, whose output counts as stdout.
        self._outputs = {child.stderr: STDERR, child.stdout: STDOUT}
        for fd in self._outputs:
            self._watch_output(fd)
        loop.add(child.pidfd, READABLE, self._on_exit)
        self._timer = loop.call_later(limit_s, self._on_time_limit)
        self._stdin_fd = child.stdin
        if stdin is not None:
            if stdin:
                self._stdin.append(memoryview(stdin))
            self._write_stdin()

    @property
    def is_running(self) -> bool:
        return self._child is not None

    def _spawn(self, argv: list[str], env: dict[str, str] | None, *, has_stdin: bool) -> Child:
        return self._processes.spawn(argv, env, has_stdin=has_stdin)

    def _refuse(self, argv: list[str], error: OSError) -> None:
        is_missing = isinstance(error, FileNotFoundError)
        message = f"{argv[0]}: {error.strerror or error}{self._LINE_END}"
        self._sink.write(STDERR, message.encode(errors="surrogateescape"))
        self._sink.ended(127 if is_missing else 126, timed_out=False)

    # Output

    def _watch_output(self, fd: int) -> None:
        self._loop.add(fd, READABLE, lambda _: self._on_output(fd))

    def _on_output(self, fd: int) -> None:
        if not self._sink.has_room():
            # poll reports a closed pipe even if no events are requested, so the pipe is removed.
            self._loop.remove(fd)
            self._paused.add(fd)
            return
        chunk = os.read(fd, MAX_PAYLOAD)
        if chunk:
            self._sink.write(self._outputs[fd], chunk)
            return
        self._close_output(fd)
        self._end_if_done()

    def _close_output(self, fd: int) -> None:
        self._loop.remove(fd)
        self._paused.discard(fd)
        del self._outputs[fd]
        os.close(fd)

    def resume(self) -> None:
        """Continue to read the command's output after a pause.

        Call this method when the port's queue has room again, or when the host accepts more output.
        """
        paused, self._paused = self._paused, set()
        for fd in paused:
            self._watch_output(fd)

    # Input

    def feed(self, chunk: bytes) -> None:
        """Write `chunk` to the command's stdin, or discard `chunk` if the command no longer reads stdin."""
        if self._stdin_fd is None:
            self._sink.took_stdin(len(chunk))
            return
        self._stdin.append(memoryview(chunk))
        self._write_stdin()

    def feed_end(self) -> None:
        """Close the command's stdin once all queued input has been written."""
        self._has_more_stdin = False
        self._write_stdin()

    def _write_stdin(self) -> None:
        fd = self._stdin_fd
        if fd is None:
            return
        while self._stdin:
            chunk = self._stdin[0]
            try:
                count = os.write(fd, chunk)
            except BlockingIOError:
                if not self._is_stdin_watched:
                    self._is_stdin_watched = True
                    self._loop.add(fd, WRITABLE, lambda _: self._write_stdin())
                return
            except OSError:
                # A command may end without reading its input, as `true` does.
                self._sink.took_stdin(sum(len(rest) for rest in self._stdin))
                self._close_stdin()
                return
            if count == len(chunk):
                self._stdin.popleft()
            else:
                self._stdin[0] = chunk[count:]
            self._sink.took_stdin(count)
        if not self._has_more_stdin:
            self._close_stdin()
        elif self._is_stdin_watched:
            self._is_stdin_watched = False
            self._loop.remove(fd)

    def _close_stdin(self) -> None:
        fd, self._stdin_fd = self._stdin_fd, None
        if fd is not None:
            self._stdin.clear()
            self._loop.remove(fd)
            os.close(fd)

    # End

    def resize(self, size: tuple[int, int]) -> None:
        """Do nothing, since this command has no terminal."""

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        if self._child is not None:
            self._processes.signal_group(self._child.pid, number)

    def _on_time_limit(self) -> None:
        self._has_timed_out = True
        self.signal(signal.SIGTERM)
        self._timer = self._loop.call_later(KILL_AFTER_S, self._on_kill)

    def _on_kill(self) -> None:
        self.signal(signal.SIGKILL)
        # The wait is limited: a process outside of the group may have the output open, or a
        # process may hang in the kernel.
        self._timer = self._loop.call_later(_UNKILLABLE_S, self._end)

    def _on_exit(self, _events: int) -> None:
        assert self._child is not None  # noqa: S101 - its descriptor was watched until now
        self._has_exited = True
        self._loop.remove(self._child.pidfd)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._has_exited and not self._outputs:
            self._end()

    def _end(self) -> None:
        exit_code = self._release()
        if self._has_timed_out:
            self._sink.ended(_TIME_LIMIT, timed_out=True)
        elif exit_code is not None:
            self._sink.ended(exit_code, timed_out=False)

    def kill(self) -> None:
        """Kill the process group and close all descriptors of the command, without an answer to the host."""
        if self._child is not None:
            self.signal(signal.SIGKILL)
            self._release()

    def _release(self) -> int | None:
        """Close all descriptors of the command.

        Return the exit code of the process group's leader, or None if the leader still runs.
        """
        child, self._child = self._child, None
        if child is None:
            return None
        self._loop.cancel_timer(self._timer)
        for fd in list(self._outputs):
            self._close_output(fd)
        self._close_stdin()
        if not self._has_exited:
            # Reap the leader once it has ended, but do not wait here.
            self._loop.remove(child.pidfd)
            self._loop.add(child.pidfd, READABLE, lambda _: self._reap_later(child))
            return None
        os.close(child.pidfd)
        return self._processes.reap(child.pid)

    def _reap_later(self, child: Child) -> None:
        self._loop.remove(child.pidfd)
        os.close(child.pidfd)
        self._processes.reap(child.pid)
