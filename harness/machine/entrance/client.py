"""Enters a running machine from a terminal, or with plain input and output for scripts."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import select
import signal
import socket
import sys
import termios
import tty
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.foreign_json import parse_json
from harness.machine.entrance.messages import Kind, Receiver, Request, TerminalSize, Verb, send
from harness.machine.entrance.roster import ENTRANCE
from harness.machine.entrance.server import SshEntry, in_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from harness.machine.entrance.roster import RunningMachine
    from harness.provisioning.command import Argv

_READ_BYTES = 65536
#: Seconds within which a shell is expected to print its prompt.
_PROMPT_S = 2.0
#: Ctrl-] detaches from a console, as in `virsh console`. The console itself does not end.
LEAVE_CONSOLE = b"\x1d"


def run_in(
    machine: RunningMachine,
    argv: Argv = (),
    env: Mapping[str, str] | None = None,
    *,
    before_input: Callable[[], None] | None = None,
) -> int:
    """Run a command in a machine with this process's input and output. Return its exit code.

    Without `argv` the command is a login shell. The command has a terminal if both input and output
    of this process are a terminal. `before_input` runs in a thread, and input is read once
    `before_input` has ended. In a terminal, a person should see the prompt first, so input is read
    only after the command has printed something, or after two seconds. Raises HarnessError if the
    machine ends first, and any error of `before_input`.
    """
    size = terminal_size() if sys.stdin.isatty() and sys.stdout.isatty() else None
    passed = {"TERM": os.environ.get("TERM", "dumb")} if size is not None else {}
    request = Request(
        verb=Verb.RUN, argv=tuple(argv), env={**passed, **(env or {})}, terminal=size
    )
    answer = _converse(machine, request, is_terminal=size is not None, before_input=before_input)
    return int(str(answer["exit_code"]))


def attach_console(machine: RunningMachine) -> None:
    """Show the serial console, and send typed input to it, until Ctrl-] or the machine's end."""
    is_terminal = sys.stdin.isatty()
    _converse(machine, Request(verb=Verb.CONSOLE), is_terminal=is_terminal, leave=LEAVE_CONSOLE)


def ssh_entry_of(machine: RunningMachine) -> SshEntry:
    """Authorize this user's key in the guest, and return how to connect."""
    answer = _converse(machine, Request(verb=Verb.SSH), has_input=False)
    return SshEntry(
        port=int(str(answer["port"])),
        key=Path(str(answer["key"])),
        known_hosts=Path(str(answer["known_hosts"])),
    )


def terminal_size() -> TerminalSize:
    """Return the size of this process's terminal."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return TerminalSize(rows=size.lines, columns=size.columns)


def _converse(
    machine: RunningMachine,
    request: Request,
    *,
    is_terminal: bool = False,
    has_input: bool = True,
    leave: bytes | None = None,
    before_input: Callable[[], None] | None = None,
) -> Mapping[str, object]:
    """Send a request, pass input and output, and return the result, or {} after `leave`."""
    with contextlib.ExitStack() as opened:
        sock = opened.enter_context(
            contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        )
        try:
            with in_folder(machine.folder) as place:
                sock.connect(f"{place}/{ENTRANCE}")
        except OSError as error:
            raise HarnessError(
                f"Machine '{machine.id}' can't be entered ({error.strerror}), because it is just "
                "starting or ending. `harness ps` lists the machines that run."
            ) from error
        send(sock, Kind.REQUEST, request.to_bytes())
        if is_terminal:
            opened.enter_context(_raw_terminal())
        has_size = is_terminal and request.verb is Verb.RUN
        resized = opened.enter_context(_resized()) if has_size else None
        awaited = opened.enter_context(_Awaited(before_input)) if before_input else None
        if awaited is not None and not is_terminal:
            # Without a terminal, a command may print nothing before it has input, so do not wait.
            awaited.start()
        return _pass(
            machine, sock, is_fed=has_input, leave=leave, awaited=awaited, resized=resized
        )


class _Awaited:
    """Runs a function in a thread, and has a descriptor that is readable once the function ends."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._is_over, self._ends = os.pipe()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="before-input")
        self._running: concurrent.futures.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.shutdown()
        os.close(self._is_over)
        os.close(self._ends)

    def fileno(self) -> int:
        return self._is_over

    def start(self) -> None:
        """Start the thread, at the first call."""
        if self._running is None:
            self._running = self._thread.submit(self._act)
            self._running.add_done_callback(lambda _: os.write(self._ends, b"."))

    def result(self) -> None:
        """Raise the error of the function. Do nothing if the function succeeded."""
        if self._running is not None:
            self._running.result()


def _pass(
    machine: RunningMachine,
    sock: socket.socket,
    *,
    is_fed: bool,
    leave: bytes | None,
    awaited: _Awaited | None,
    resized: int | None,
) -> Mapping[str, object]:
    receiver = Receiver(sock)
    stdin = sys.stdin.fileno() if is_fed else -1
    sources: list[int] = [sock.fileno(), *([] if resized is None else [resized])]
    if awaited is not None:
        sources.append(awaited.fileno())
    elif is_fed:
        sources.append(stdin)
    while True:
        ready, _, _ = select.select(sources, [], [], None if awaited is None else _PROMPT_S)
        if resized in ready:
            _send_size(sock, resized)
            continue
        if awaited is not None and awaited.fileno() in ready:
            awaited.result()
            sources[sources.index(awaited.fileno())] = stdin
            awaited = None
        elif stdin in ready:
            typed = os.read(stdin, _READ_BYTES)
            if leave is not None and leave in typed:
                return {}
            _try_send(sock, Kind.INPUT if typed else Kind.INPUT_END, typed)
            if not typed:
                sources.remove(stdin)
        if sock.fileno() in ready:
            messages = receiver.receive()
            if messages is None:
                raise HarnessError(
                    f"Machine '{machine.id}' or its process (PID {machine.process}) has ended."
                )
            ended = _show(messages)
            if ended is not None:
                return ended
        if awaited is not None:
            awaited.start()


def _show(messages: Sequence[tuple[Kind, bytes]]) -> Mapping[str, object] | None:
    """Write output. Return how the request ended, or None if the request has not ended."""
    for kind, content in messages:
        if kind is Kind.OUTPUT:
            _write(1, content)
        elif kind is Kind.ERRORS:
            _write(2, content)
        elif kind is Kind.REFUSAL:
            raise HarnessError(content.decode(errors="replace"))
        elif kind is Kind.END:
            ended: dict[str, object] = parse_json(content)
            return ended
    return None


def _try_send(sock: socket.socket, kind: Kind, content: bytes) -> None:
    """Send a message. Ignore an error, since earlier messages say why the machine ended."""
    with contextlib.suppress(OSError):
        send(sock, kind, content)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Put the terminal into raw mode, so that every key reaches the guest, until the context ends."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resized() -> Iterator[int]:
    """Yield a descriptor that becomes readable at each new size of the terminal.

    The signal handler sends nothing, since the signal may interrupt the sending of a message.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def note(_number: int, _frame: object) -> None:
        # A full pipe already reports a new size.
        with contextlib.suppress(BlockingIOError):
            os.write(writing, b".")

    before = signal.signal(signal.SIGWINCH, note)
    try:
        yield reading
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(reading)
        os.close(writing)


def _send_size(sock: socket.socket, resized: int) -> None:
    os.read(resized, _READ_BYTES)
    _try_send(sock, Kind.RESIZE, json.dumps(asdict(terminal_size())).encode())
