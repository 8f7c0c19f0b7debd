"""Runs a command in a new terminal of the guest, for a person who uses a terminal of the host."""

from __future__ import annotations

import os
import signal

from .commands import KILL_AFTER_S, Command
from .frames import MAX_PAYLOAD, STDOUT, ProtocolError
from .processes import set_terminal_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .commands import Sink
    from .loop import Loop
    from .processes import Child, Processes

#: Ctrl-D. A terminal's driver treats this character as the end of input at the beginning of a line.
_END_OF_INPUT = b"\x04"


class TerminalCommand(Command):
    """A command that runs in a terminal; all output of the command counts as stdout.

    The command ends when its process has ended and the output of that process has been read. The
    command does not wait for other processes that have the terminal open. When the command ends,
    these processes lose the terminal, as with `ssh -t`.
    """

    #: The person's terminal is in raw mode, so a line needs a carriage return too.
    _LINE_END = "\r\n"

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
        size: tuple[int, int],
        fallback: list[str] | None = None,
    ) -> None:
        """Start `argv`, or `fallback` if the program of `argv` is missing.

        Raises OSError if the guest lacks the resources to start a process.
        """
        self._size = size
        self._fallback = fallback
        # The kernel's buffer of the process's last output is smaller than this limit. Without a
        # limit, the agent could read forever, because other processes in the terminal may continue
        # to write.
        self._left = MAX_PAYLOAD
        if stdin is not None and not has_more_stdin:
            stdin += _END_OF_INPUT
        super().__init__(
            loop,
            processes,
            sink,
            argv,
            env=env,
            limit_s=limit_s,
            stdin=stdin,
            has_more_stdin=has_more_stdin,
        )

    def _spawn(self, argv: list[str], env: dict[str, str] | None, *, has_stdin: bool) -> Child:
        argvs = [argv, self._fallback] if self._fallback else [argv]
        return self._processes.spawn_in_terminal(argvs, env, self._size, has_stdin=has_stdin)

    def resize(self, size: tuple[int, int]) -> None:
        if self._child is not None and self._outputs:
            set_terminal_size(self._child.stdout, size)

    def _on_output(self, fd: int) -> None:
        while self._sink.has_room():
            try:
                chunk = os.read(fd, MAX_PAYLOAD)
            except OSError as error:
                if not self._has_exited:
                    if not isinstance(error, BlockingIOError):
                        # EIO: no process has the terminal open, and poll would report this error
                        # forever. The leader continues. Closing the master would end the leader by
                        # SIGHUP.
                        self._loop.remove(fd)
                    return
                chunk = b""
            if chunk:
                self._sink.write(STDOUT, chunk)
                if not self._has_exited:
                    return
                self._left -= len(chunk)
            if not chunk or self._left <= 0:
                self._close_output(fd)
                self._end_if_done()
                return
        self._loop.remove(fd)
        self._paused.add(fd)

    def _on_exit(self, events: int) -> None:
        super()._on_exit(events)
        self._read_rest()

    def resume(self) -> None:
        super().resume()
        if self._has_exited:
            self._read_rest()

    def _read_rest(self) -> None:
        # poll does not report an empty terminal that a remaining process has open.
        for fd in list(self._outputs):
            self._on_output(fd)

    def feed_end(self) -> None:
        """End the input by Ctrl-D, as a person does. The terminal stays open for output."""
        if self._stdin_fd is not None:
            self._stdin.append(memoryview(_END_OF_INPUT))
        super().feed_end()

    def _on_time_limit(self) -> None:
        super()._on_time_limit()
        # An interactive shell ignores SIGTERM. SIGHUP ends the shell and its jobs.
        self.signal(signal.SIGHUP)

    def kill(self) -> None:
        """Close the terminal, so that the kernel sends SIGHUP to the command.

        After `KILL_AFTER_S` seconds, kill the command's process group if the command still runs.
        """
        child = self._child
        if child is None:
            return
        self._release()
        if not self._has_exited:
            self._timer = self._loop.call_later(
                KILL_AFTER_S, lambda: self._processes.signal_group(child.pid, signal.SIGKILL)
            )

    def _reap_later(self, child: Child) -> None:
        self._loop.cancel_timer(self._timer)
        super()._reap_later(child)


def size_of(fields: object) -> tuple[int, int]:
    """Return the rows and columns in parsed JSON. Raises ProtocolError if the JSON lacks them."""
    if isinstance(fields, dict):
        rows, columns = fields.get("rows"), fields.get("columns")
        if isinstance(rows, int) and isinstance(columns, int):
            return min(max(rows, 0), 0xFFFF), min(max(columns, 0), 0xFFFF)
    raise ProtocolError(f"A terminal needs 'rows' and 'columns', but got {fields!r}.")
