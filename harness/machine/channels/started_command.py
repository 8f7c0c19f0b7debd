"""A running command in the guest, to which the caller sends input and signals.

`Agent.run` and `Agent.stream` need all input at the start, but a person types input later.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from harness.agent import TERMINAL_PROTOCOL, frames
from harness.errors import HarnessError
from harness.machine.channels.agent_link import message
from harness.provisioning.command import require_argv
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from harness.machine.channels.agent_link import AgentLink, Call
    from harness.provisioning.command import Argv

#: Seconds added to a command's own limit, for SIGKILL after SIGTERM and for the answer.
_GRACE_S = 25.0


class StartedCommand:
    """A running command: one thread waits for its end, another may send it input and signals."""

    def __init__(self, link: AgentLink, call: Call, deadline: Deadline) -> None:
        self._link = link
        self._call = call
        self._deadline = deadline
        self._changed = threading.Condition()
        self._window = frames.STDIN_WINDOW
        self._has_ended = False

    def feed(self, content: bytes) -> None:
        """Send input. Block while the guest does not read. Do nothing once the command has ended."""
        rest = memoryview(content)
        while rest:
            with self._changed:
                self._changed.wait_for(lambda: self._window > 0 or self._has_ended)
                if self._has_ended:
                    return
                chunk = rest[: min(self._window, frames.MAX_PAYLOAD)]
                self._window -= len(chunk)
            rest = rest[len(chunk) :]
            self._link.send(frames.DATA, self._call, bytes(chunk))

    def feed_end(self) -> None:
        """Close the command's input. A command in a terminal reads Ctrl-D instead."""
        self._link.send(frames.DATA_END, self._call)

    def signal(self, number: int) -> None:
        """Send a signal to the command."""
        self._link.send(frames.SIGNAL, self._call, str(number).encode())

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the command's terminal."""
        size = frames.to_json({"rows": rows, "columns": columns})
        self._link.send(frames.RESIZE, self._call, size)

    def cancel(self) -> None:
        """Kill the command, or hang up its terminal, so that `wait` returns."""
        self._link.send(frames.CANCEL, self._call)

    def wait(self, on_output: Callable[[int, bytes], None]) -> int | None:
        """Pass output to `on_output` as it arrives. Return the exit code, or None after `cancel`.

        `on_output` gets the kind, `frames.STDOUT` or `frames.STDERR`, and the bytes. Raises
        HarnessError if the machine ends, or if the command's time limit passes.
        """
        try:
            while True:
                kind, payload = self._link.next(self._call, self._deadline, "it was still running")
                if kind in {frames.STDOUT, frames.STDERR}:
                    on_output(kind, payload)
                    self._link.give_credit(self._call, len(payload))
                elif kind == frames.CREDIT:
                    with self._changed:
                        self._window += int.from_bytes(payload[:4], "big")
                        self._changed.notify_all()
                elif kind == frames.RESULT:
                    break
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()
        with self._link.reading(self._call):
            code = frames.from_json(payload).get("exit_code")
            return int(code) if isinstance(code, int) else None


@contextlib.contextmanager
def started_command(
    link: AgentLink,
    argv: Argv,
    *,
    limit_s: float,
    env: Mapping[str, str],
    terminal: tuple[int, int] | None = None,
    fallback: Argv = (),
) -> Iterator[StartedCommand]:
    """Start `argv` in the guest as root, and kill it at `limit_s` or at the end of the context.

    With `terminal` (rows and columns), the command runs in a terminal of that size, and all its
    output is `frames.STDOUT`. `fallback` runs in the terminal if the guest lacks the program of
    `argv`.

    Raises HarnessError if the guest does not accept the request.
    """
    require_argv(argv)
    head: dict[str, object] = {
        "argv": list(argv),
        "env": dict(env),
        "limit_s": limit_s,
        "stdin": "more",
    }
    if terminal is not None:
        rows, columns = terminal
        head["terminal"] = {"rows": rows, "columns": columns}
        head["fallback"] = list(fallback)
    deadline = Deadline.after(limit_s + _GRACE_S)
    if terminal is not None and link.wait_until_ready(deadline).protocol < TERMINAL_PROTOCOL:
        raise HarnessError(
            "This machine was saved by an older harness, whose agent can't open terminals. Use "
            "`harness ssh`, or a command whose output is piped, such as "
            "`harness shell --machine MACHINE -- dmesg | cat`."
        )
    what = f"the command {' '.join(argv)!r}"
    render = message(frames.RUN, frames.to_json(head) + b"\n")
    with link.call(what, render, deadline) as call:
        yield StartedCommand(link, call, deadline)
