"""A user in a terminal enters a machine: the shell, the console and the SSH server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from harness.agent import frames
from harness.errors import HarnessError
from harness.machine.entrance import client
from harness.machine.entrance.messages import Kind, send
from harness.machine.entrance.server import SshEntry
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.host.machine.entrance.enterable import Enterable, Place
from suites.unit.machine.channels.played_guest import ENDED, PlayedGuest

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

_JOIN_S = 5.0


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Give this process a terminal of 24 rows and 80 columns, and yield the user's end of it."""
    person, ours = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(ours, "r+b", buffering=0) as file:
        # pytest itself replaces `sys.stdout` between the parts of a test.
        monkeypatch.setattr(client, "sys", SimpleNamespace(stdin=file, stdout=file))
        monkeypatch.setenv("TERM", "xterm-256color")
        yield person
    os.close(person)


def wait_for_raw_mode(terminal: int) -> None:
    """Wait until the terminal passes every key on, and echoes no key."""

    def is_raw() -> Observation[bool]:
        flags = termios.tcgetattr(terminal)[3]
        return Observation(None if flags & termios.ICANON else True, "it edits lines")

    wait_for("the terminal to be in raw mode", is_raw, Deadline.after(_JOIN_S))


def head_of(guest: PlayedGuest) -> dict[str, object]:
    """Return the head of the request to run a command that the guest received."""
    (body,) = (payload for kind, _, payload in guest.seen if kind == frames.RUN)
    head: dict[str, object] = json.loads(body.partition(b"\n")[0])
    return head


def ends(code: int) -> Callable[[PlayedGuest, int, bytes], None]:
    def end(guest: PlayedGuest, request: int, _: bytes) -> None:
        guest.says(frames.RESULT, request, {**ENDED, "exit_code": code})

    return end


def test_input_reaches_a_shell_that_shows_no_prompt(
    place: Place, terminal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PROMPT_S", 0.1)
    place.guest.answers[frames.DATA] = ends(6)

    def gets_ready() -> None:
        os.write(terminal, b"exit\n")

    assert client.run_in(place.machine, before_input=gets_ready) == 6


def test_prompt_is_shown_before_the_before_input_callback_runs(
    place: Place, terminal: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    is_ready = threading.Event()

    def prompts(guest: PlayedGuest, request: int, _: bytes) -> None:
        # A client that does not wait for the prompt would call `gets_ready` during this wait.
        is_ready.wait(0.2)
        guest.says(frames.STDOUT, request, b"root@clone:~# ")

    def gets_ready() -> None:
        os.write(1, b"ready ")
        is_ready.set()
        os.write(terminal, b"exit\n")

    monkeypatch.setattr(client, "_PROMPT_S", 3600.0)
    place.guest.answers[frames.RUN] = prompts
    place.guest.answers[frames.DATA] = ends(0)

    assert client.run_in(place.machine, before_input=gets_ready) == 0

    assert capfd.readouterr().out == "root@clone:~# ready "


def test_shell_gets_the_size_and_the_kind_of_the_terminal(place: Place, terminal: int) -> None:
    place.guest.answers[frames.RUN] = ends(0)
    before = termios.tcgetattr(terminal)

    assert client.run_in(place.machine, env={"LANG": "C"}) == 0

    head = head_of(place.guest)
    assert (head["argv"], head["fallback"]) == (["bash"], ["sh", "-i"])
    assert head["terminal"] == {"rows": 24, "columns": 80}
    assert head["env"] == {"TERM": "xterm-256color", "LANG": "C"}
    assert termios.tcgetattr(terminal) == before


@pytest.mark.usefixtures("terminal")
def test_environment_of_the_caller_overrides_the_environment_of_the_terminal(place: Place) -> None:
    place.guest.answers[frames.RUN] = ends(0)

    client.run_in(place.machine, ["top"], {"TERM": "dumb"})

    assert head_of(place.guest)["env"] == {"TERM": "dumb"}


@pytest.mark.usefixtures("terminal")
def test_command_gets_a_dumb_terminal_if_term_is_not_set(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TERM")
    place.guest.answers[frames.RUN] = ends(0)

    client.run_in(place.machine, ["top"])

    assert head_of(place.guest)["env"] == {"TERM": "dumb"}


@pytest.mark.usefixtures("terminal")
def test_command_whose_output_is_piped_gets_no_terminal(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.guest.answers[frames.RUN] = ends(0)

    with Path("/dev/null").open("w") as pipe:
        monkeypatch.setattr("harness.machine.entrance.client.sys.stdout", pipe)
        client.run_in(place.machine, ["dmesg"])

    head = head_of(place.guest)
    assert "terminal" not in head
    assert head["env"] == {}


@pytest.mark.usefixtures("terminal")
def test_command_in_a_terminal_is_started_without_a_fallback_shell(place: Place) -> None:
    place.guest.answers[frames.RUN] = ends(0)

    client.run_in(place.machine, ["ls", "a b"])

    head = head_of(place.guest)
    assert (head["argv"], head["fallback"]) == (["ls", "a b"], [])
    assert head["terminal"] == {"rows": 24, "columns": 80}


def test_every_key_goes_to_the_guest_while_the_command_runs(place: Place, terminal: int) -> None:
    """This includes the keys that would otherwise end the client."""
    typed = bytearray()

    def read(guest: PlayedGuest, request: int, payload: bytes) -> None:
        typed.extend(payload)
        if typed.endswith(b"q"):
            guest.says(frames.RESULT, request, ENDED)

    def started(*_: object) -> None:
        wait_for_raw_mode(terminal)
        os.write(terminal, b"\x03\x04\x1d\rq")

    place.guest.answers[frames.RUN] = started
    place.guest.answers[frames.DATA] = read

    assert client.run_in(place.machine, ["cat"]) == 0

    assert bytes(typed) == b"\x03\x04\x1d\rq"


def test_new_size_of_the_terminal_is_not_sent_in_the_middle_of_input(
    place: Place, terminal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal may arrive while the client sends a long message."""
    sending: list[Kind] = []
    outer_kinds: dict[Kind, list[Kind]] = {}

    def run(_guest: PlayedGuest, _request: int, _payload: bytes) -> None:
        wait_for_raw_mode(terminal)
        os.write(terminal, b"x")

    def interrupted_send(sock: socket.socket, kind: Kind, content: bytes = b"") -> None:
        outer_kinds[kind] = list(sending)
        sending.append(kind)
        if kind is Kind.INPUT:
            signal.raise_signal(signal.SIGWINCH)
        send(sock, kind, content)
        sending.remove(kind)

    place.guest.answers[frames.RUN] = run
    place.guest.answers[frames.RESIZE] = ends(0)
    monkeypatch.setattr(client, "send", interrupted_send)

    assert client.run_in(place.machine, ["vi"]) == 0

    assert outer_kinds == {Kind.REQUEST: [], Kind.INPUT: [], Kind.RESIZE: []}


def test_guest_gets_the_new_size_of_the_terminal(place: Place, terminal: int) -> None:
    sizes: list[object] = []

    def run(_guest: PlayedGuest, _request: int, _payload: bytes) -> None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
        wait_for("the client to watch the size", is_watching, Deadline.after(_JOIN_S))
        os.kill(os.getpid(), signal.SIGWINCH)
        # If the signal arrives just before `select`, the client handles it after the next input.
        os.write(terminal, b"x")

    def resize(guest: PlayedGuest, request: int, payload: bytes) -> None:
        sizes.append(json.loads(payload))
        guest.says(frames.RESULT, request, {**ENDED, "exit_code": 3})

    def is_watching() -> Observation[bool]:
        is_set = signal.getsignal(signal.SIGWINCH) != before
        return Observation(True if is_set else None, "it does not")

    def before(*_: object) -> None:
        """Play the caller's own signal handler."""

    place.guest.answers[frames.RUN] = run
    place.guest.answers[frames.RESIZE] = resize
    at_first = signal.signal(signal.SIGWINCH, before)
    try:
        assert client.run_in(place.machine, ["vi"]) == 3

        assert sizes == [{"rows": 50, "columns": 132}]
        assert signal.getsignal(signal.SIGWINCH) == before
    finally:
        signal.signal(signal.SIGWINCH, at_first)


def test_shell_without_a_terminal_gets_no_environment(place: Place) -> None:
    place.guest.answers[frames.RUN] = ends(4)

    assert client.run_in(place.machine) == 4

    head = head_of(place.guest)
    assert head["argv"] == ["sh", "-c", "command -v bash >/dev/null && exec bash; exec sh -i"]
    assert head["env"] == {}


def test_end_of_input_is_passed_to_the_command(place: Place) -> None:
    place.guest.answers[frames.DATA_END] = ends(5)
    with Path("/dev/null").open() as nothing, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", nothing)

        assert client.run_in(place.machine, ["cat"]) == 5


def test_exit_key_ends_the_console_and_is_not_sent_to_the_guest(
    place: Place, stdin: Callable[[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[bytes] = []
    shown: list[tuple[int, bytes]] = []
    seen = threading.Event()

    def show(descriptor: int, content: bytes) -> None:
        shown.append((descriptor, content))
        seen.set()

    def person() -> None:
        place.serial.sendall(b"login: ")
        stdin(b"root\r")
        keys.append(place.serial.recv(100))
        seen.wait(_JOIN_S)
        stdin(b"q\x1d")

    monkeypatch.setattr(client, "_write", show)
    typing = threading.Thread(target=person)
    typing.start()

    client.attach_console(place.machine)

    typing.join(_JOIN_S)
    assert (keys, shown) == ([b"root\r"], [(1, b"login: ")])


def test_console_gets_every_key_except_the_exit_key(place: Place, terminal: int) -> None:
    """This includes the keys that would otherwise end the client."""
    keys: list[bytes] = []

    def person() -> None:
        try:
            wait_for("the terminal to pass every key", is_raw, Deadline.after(_JOIN_S))
            os.write(terminal, b"\x03\x04q")
            place.serial.settimeout(_JOIN_S)
            keys.extend(place.serial.recv(1) for _ in range(3))
        finally:
            os.write(terminal, b"\x1d\n")

    def is_raw() -> Observation[bool]:
        flags = termios.tcgetattr(terminal)[3]
        return Observation(None if flags & termios.ICANON else True, "it edits lines")

    before = termios.tcgetattr(terminal)
    typing = threading.Thread(target=person)
    typing.start()

    client.attach_console(place.machine)

    typing.join(_JOIN_S)
    assert keys == [b"\x03", b"\x04", b"q"]
    assert termios.tcgetattr(terminal) == before


def test_console_ends_with_its_machine(place: Place) -> None:
    place.serial.close()

    client.attach_console(place.machine)


def test_terminal_is_restored_if_the_machine_ends_during_a_command(
    place: Place, terminal: int
) -> None:
    def end(guest: PlayedGuest, *_: object) -> None:
        guest.theirs.close()

    place.guest.answers[frames.RUN] = end
    before = termios.tcgetattr(terminal)

    with pytest.raises(HarnessError, match="node"):
        client.run_in(place.machine, ["sleep", "1000"])

    assert termios.tcgetattr(terminal) == before


def test_client_gets_the_ssh_access_from_the_machine(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = SshEntry(port=2222, key=Path("/keys/user"), known_hosts=Path("/node/known_hosts"))
    monkeypatch.setattr(Enterable, "ssh_entry", lambda _: entry)

    assert client.ssh_entry_of(place.machine) == entry


def test_ssh_uses_only_the_key_and_the_known_hosts_of_its_machine() -> None:
    entry = SshEntry(port=2222, key=Path("/keys/user"), known_hosts=Path("/node/known_hosts"))

    assert entry.argv() == [
        *("ssh", "-F", "none", "-p", "2222", "-i", "/keys/user"),
        *("-o", "IdentitiesOnly=yes", "-o", "UserKnownHostsFile=/node/known_hosts"),
        *("-o", "HostKeyAlias=guest", "root@127.0.0.1"),
    ]
