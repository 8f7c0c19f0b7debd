"""Serves a machine's entrance: commands through the agent, the serial console, and SSH access."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import socket
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from harness.agent import frames
from harness.errors import HarnessError
from harness.foreign_json import parse_json
from harness.machine.channels.started_command import StartedCommand, started_command
from harness.machine.entrance.messages import Kind, Receiver, Request, Verb, send, size_from
from harness.machine.entrance.roster import ENTRANCE
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.machine.channels.agent import Agent
    from harness.machine.channels.console import Console
    from harness.machine.entrance.messages import TerminalSize

#: A week in seconds. A shell should have no limit, but every wait needs a limit.
_SHELL_S = 7 * 86400.0
_READY_S = 120.0
_CLOSE_S = 5.0
_BACKLOG = 8
_BY_SIGNAL = 128
#: The maximum number of chunks of console output that wait to be sent to one client. A chunk has
#: at most 64 KiB.
_MOST_UNSENT = 256

_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash; exec sh -i")
#: In a terminal the agent starts the shell itself, since an emulated guest needs 50 ms to start each
#: additional program.
_SHELL_IN_TERMINAL, _OTHER_SHELL = ("bash",), ("sh", "-i")


@dataclass(frozen=True, kw_only=True)
class SshEntry:
    """How to reach the guest by SSH: a port of the host's loopback, a key, and the guest's key."""

    port: int
    key: Path
    known_hosts: Path

    def argv(self) -> list[str]:
        """Return the command that opens a shell."""
        return [
            "ssh",
            *("-F", "none"),
            *("-p", str(self.port)),
            *("-i", str(self.key)),
            *("-o", "IdentitiesOnly=yes"),
            *("-o", f"UserKnownHostsFile={self.known_hosts}"),
            *("-o", "HostKeyAlias=guest"),
            "root@127.0.0.1",
        ]


class Enterable(Protocol):
    """A machine that people can enter."""

    @property
    def name(self) -> str: ...

    @property
    def agent(self) -> Agent: ...

    @property
    def console(self) -> Console: ...

    def ssh_entry(self) -> SshEntry:
        """Authorize this user's key in the guest, and return how to connect."""


@contextlib.contextmanager
def served_entrance(machine: Enterable, folder: Path) -> Iterator[None]:
    """Serve the entrance of a machine on a socket in its `folder`, until the context ends."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(listener), in_folder(folder) as place:
        listener.bind(f"{place}/{ENTRANCE}")
        listener.listen(_BACKLOG)
        server = _Server(machine, listener)
        server.start()
        try:
            yield
        finally:
            server.close()
            (folder / ENTRANCE).unlink(missing_ok=True)


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[str]:
    """Yield a short alias of `folder`: the path of a socket has 107 bytes at most."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class _Server:
    """Accepts clients, and serves each client in a separate thread."""

    def __init__(self, machine: Enterable, listener: socket.socket) -> None:
        self._machine = machine
        self._listener = listener
        self._clients: set[socket.socket] = set()
        self._thread = threading.Thread(
            target=self._accept, name=f"entrance-{machine.name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        for sock in (self._listener, *self._clients):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(_CLOSE_S)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.add(client)
            threading.Thread(
                target=self._serve,
                args=(client,),
                name=f"visitor-{self._machine.name}",
                daemon=True,
            ).start()

    def _serve(self, client: socket.socket) -> None:
        # The client may disconnect at any time, and the machine may end.
        with contextlib.closing(client), contextlib.suppress(OSError):
            try:
                _Visit(self._machine, client).serve()
            except (HarnessError, ValueError, KeyError, TypeError) as error:
                send(client, Kind.REFUSAL, str(error).encode())
        self._clients.discard(client)


def _size_of(content: bytes) -> TerminalSize:
    """Return the size in a message. Raises HarnessError if the size is invalid."""
    try:
        return size_from(parse_json(content))
    except (ValueError, KeyError, TypeError) as error:
        raise HarnessError(
            f"A client's terminal has an impossible size: {content[:80]!r}."
        ) from error


def _put_newest(unsent: queue.Queue[bytes | None], chunk: bytes | None) -> None:
    """Put a chunk without waiting, from one thread at a time. A full queue drops its oldest chunk."""
    if unsent.full():
        # Another thread may have just taken the oldest chunk.
        with contextlib.suppress(queue.Empty):
            unsent.get_nowait()
    unsent.put_nowait(chunk)


class _Visit:
    """The connection of one client: reads the client's request, and sends the answer."""

    def __init__(self, machine: Enterable, client: socket.socket) -> None:
        self._machine = machine
        self._client = client
        self._receiver = Receiver(client)

    def serve(self) -> None:
        first = self._receiver.next()
        if first is None or first[0] is not Kind.REQUEST:
            return
        request = Request.from_bytes(first[1])
        if request.verb is Verb.CONSOLE:
            self._attach_console()
        elif request.verb is Verb.SSH:
            self._machine.agent.wait_until_ready(Deadline.after(_READY_S))
            entry = self._machine.ssh_entry()
            self._end({key: str(value) for key, value in asdict(entry).items()})
        else:
            self._run(request)

    def _end(self, result: object) -> None:
        send(self._client, Kind.END, json.dumps(result).encode())

    def _run(self, request: Request) -> None:
        agent, size = self._machine.agent, request.terminal
        agent.wait_until_ready(Deadline.after(_READY_S))
        with started_command(
            agent.link,
            request.argv or (_SHELL if size is None else _SHELL_IN_TERMINAL),
            limit_s=_SHELL_S,
            env=request.env,
            terminal=None if size is None else (size.rows, size.columns),
            fallback=() if request.argv else _OTHER_SHELL,
        ) as started:
            reading = threading.Thread(
                target=self._pass_input, args=(started,), name="visitor-input", daemon=True
            )
            reading.start()
            code = started.wait(self._pass_output)
        if code is not None:
            # If a signal ended the command, report 128 plus the signal's number, as shells do.
            self._end({"exit_code": code if code >= 0 else _BY_SIGNAL - code})

    def _pass_output(self, kind: int, content: bytes) -> None:
        send(self._client, Kind.OUTPUT if kind == frames.STDOUT else Kind.ERRORS, content)

    def _pass_input(self, started: StartedCommand) -> None:
        # A client that sends an invalid message or size is treated as disconnected.
        with contextlib.suppress(OSError, HarnessError):
            while (messages := self._receiver.receive()) is not None:
                for kind, content in messages:
                    if kind is Kind.INPUT:
                        started.feed(content)
                    elif kind is Kind.INPUT_END:
                        started.feed_end()
                    elif kind is Kind.RESIZE:
                        size = _size_of(content)
                        started.resize(size.rows, size.columns)
        # The client has disconnected.
        started.cancel()

    def _attach_console(self) -> None:
        """Send the client the console's last output and all later output. Type the client's input."""
        # A client that does not read must not block the console, so a separate thread sends.
        printed: queue.Queue[bytes | None] = queue.Queue(_MOST_UNSENT)
        sending = threading.Thread(
            target=self._send_printed, args=(printed.get,), name="visitor-console", daemon=True
        )
        console = self._machine.console
        with console.tapped(functools.partial(_put_newest, printed)):
            sending.start()
            while (messages := self._receiver.receive()) is not None:
                for kind, content in messages:
                    if kind is Kind.INPUT:
                        console.type(content)
        _put_newest(printed, None)
        sending.join(_CLOSE_S)

    def _send_printed(self, get: Callable[[], bytes | None]) -> None:
        with contextlib.suppress(OSError):
            while (chunk := get()) is not None:
                if not chunk:
                    self._end({})
                    return
                send(self._client, Kind.OUTPUT, chunk)
