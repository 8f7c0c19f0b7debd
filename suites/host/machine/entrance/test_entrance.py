"""A machine's entrance, from the client to a guest that the test simulates."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
from typing import TYPE_CHECKING, cast

import pytest

from harness.agent import frames
from harness.errors import HarnessError
from harness.machine.channels.console import Console
from harness.machine.entrance import client
from harness.machine.entrance.messages import Kind, Receiver, Request, Verb, send
from harness.machine.entrance.roster import RunningMachine
from harness.machine.entrance.server import served_entrance
from suites.host.machine.entrance.enterable import Enterable
from suites.unit.machine.channels.played_guest import ENDED, PlayedGuest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.machine.channels.agent import Agent
    from suites.host.machine.entrance.enterable import Place

_JOIN_S = 5.0


def test_command_passes_output_and_exit_code(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    def ended(guest: PlayedGuest, request: int, payload: bytes) -> None:
        assert json.loads(payload.partition(b"\n")[0])["argv"] == ["uname", "-r"]
        guest.says(frames.STDOUT, request, b"6.1.0\n")
        guest.says(frames.STDERR, request, b"hm\n")
        guest.says(frames.RESULT, request, {**ENDED, "exit_code": 7})

    place.guest.answers[frames.RUN] = ended

    assert client.run_in(place.machine, ["uname", "-r"]) == 7
    assert capfd.readouterr() == ("6.1.0\n", "hm\n")


def test_exit_code_after_a_signal_is_128_plus_its_number(place: Place) -> None:
    def ended(guest: PlayedGuest, request: int, _payload: bytes) -> None:
        guest.says(frames.RESULT, request, {**ENDED, "exit_code": -15})

    place.guest.answers[frames.RUN] = ended

    assert client.run_in(place.machine, ["sleep", "1000"]) == 143


def test_input_reaches_the_command(
    place: Place, stdin: Callable[[bytes], int], capfd: pytest.CaptureFixture[str]
) -> None:
    def echo(guest: PlayedGuest, request: int, payload: bytes) -> None:
        guest.says(frames.STDOUT, request, payload)
        guest.says(frames.RESULT, request, ENDED)

    place.guest.answers[frames.DATA] = echo
    stdin(b"typed")

    assert client.run_in(place.machine, ["cat"]) == 0
    assert capfd.readouterr().out == "typed"


PROMPT = b"root@clone:~# "


def prompts(guest: PlayedGuest, request: int, _payload: bytes) -> None:
    guest.says(frames.STDOUT, request, PROMPT)


def test_prompt_is_shown_early_but_input_is_sent_only_when_the_caller_is_ready(
    place: Place, stdin: Callable[[bytes], int], capfd: pytest.CaptureFixture[str]
) -> None:
    fed_when_ready: list[bool] = []

    def takes_input(guest: PlayedGuest, request: int, payload: bytes) -> None:
        assert payload == b"typed ahead"
        fed_when_ready.append(is_ready.is_set())
        guest_was_fed.set()
        guest.says(frames.RESULT, request, ENDED)

    def gets_ready() -> None:
        # If the client sent the input too early, the guest would receive the input during this wait.
        guest_was_fed.wait(0.2)
        os.write(1, b"ready ")
        is_ready.set()

    is_ready, guest_was_fed = threading.Event(), threading.Event()
    place.guest.answers[frames.RUN] = prompts
    place.guest.answers[frames.DATA] = takes_input
    stdin(b"typed ahead")

    assert client.run_in(place.machine, before_input=gets_ready) == 0
    assert fed_when_ready == [True]
    assert capfd.readouterr().out == "root@clone:~# ready "


def test_script_on_stdin_reaches_a_shell_that_has_printed_nothing(
    place: Place, stdin: Callable[[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell without a terminal prints no prompt, so the client does not wait for one."""
    monkeypatch.setattr(client, "_PROMPT_S", 3600.0)
    ready: list[bool] = []

    def takes_input(guest: PlayedGuest, request: int, payload: bytes) -> None:
        assert (payload, ready) == (b"exit 5\n", [True])
        guest.says(frames.RESULT, request, {**ENDED, "exit_code": 5})

    place.guest.answers[frames.DATA] = takes_input
    stdin(b"exit 5\n")

    assert client.run_in(place.machine, before_input=lambda: ready.append(True)) == 5


def test_shell_ends_if_the_before_input_callback_raises(place: Place) -> None:
    def has_no_gpu() -> None:
        raise HarnessError("The guest does not list the GPU.")

    place.guest.answers[frames.RUN] = prompts

    with pytest.raises(HarnessError, match="does not list the GPU"):
        client.run_in(place.machine, before_input=has_no_gpu)


def test_exit_code_of_a_shell_is_returned_only_after_the_before_input_callback(
    place: Place,
) -> None:
    request_of_shell: list[int] = []
    runs, may_get_ready = threading.Event(), threading.Event()
    got_ready: list[bool] = []

    def prompts_and_notes(guest: PlayedGuest, request: int, payload: bytes) -> None:
        request_of_shell.append(request)
        prompts(guest, request, payload)
        runs.set()

    def gets_ready() -> None:
        assert runs.wait(_JOIN_S)
        place.guest.says(frames.RESULT, request_of_shell[0], {**ENDED, "exit_code": 3})
        got_ready.append(may_get_ready.wait(_JOIN_S))

    place.guest.answers[frames.RUN] = prompts_and_notes
    threading.Timer(0.2, may_get_ready.set).start()

    assert client.run_in(place.machine, before_input=gets_ready) == 3
    assert got_ready == [True]


def test_command_is_cancelled_when_its_client_disconnects(place: Place) -> None:
    cancelled = threading.Event()
    running = threading.Event()
    place.guest.answers[frames.RUN] = lambda *_: running.set()
    place.guest.answers[frames.CANCEL] = lambda *_: cancelled.set()
    with contextlib.closing(_connected(place)) as sock:
        send(sock, Kind.REQUEST, Request(verb=Verb.RUN, argv=("sleep", "1000")).to_bytes())
        assert running.wait(_JOIN_S)

    assert cancelled.wait(_JOIN_S)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\n", id="no-message"),
        pytest.param(b"\x04\x00\x00\x00\x04huge", id="no-json"),
        pytest.param(b"\x04\x00\x00\x00\x02{}", id="no-rows"),
        pytest.param(b"\x04\x00\x00\x00\x02[]", id="no-size"),
    ],
)
def test_command_ends_if_its_client_sends_something_other_than_input(
    place: Place, sent: bytes
) -> None:
    cancelled = threading.Event()
    running = threading.Event()
    place.guest.answers[frames.RUN] = lambda *_: running.set()
    place.guest.answers[frames.CANCEL] = lambda *_: cancelled.set()
    with contextlib.closing(_connected(place)) as sock:
        send(sock, Kind.REQUEST, Request(verb=Verb.RUN, argv=("sleep", "1000")).to_bytes())
        assert running.wait(_JOIN_S)
        sock.sendall(sent)

        assert cancelled.wait(_JOIN_S)


def test_client_that_does_not_begin_with_its_request_gets_no_answer(place: Place) -> None:
    with contextlib.closing(_connected(place)) as sock:
        send(sock, Kind.INPUT, Request(verb=Verb.SSH).to_bytes())

        assert Receiver(sock).next() is None


@pytest.fixture
def before() -> set[threading.Thread]:
    return set(threading.enumerate())


def test_open_connections_do_not_keep_the_process_of_the_machine_alive(
    before: set[threading.Thread], place: Place
) -> None:
    running = threading.Event()
    place.guest.answers[frames.DATA] = lambda *_: running.set()
    place.serial.sendall(b"login: ")
    with (
        contextlib.closing(_connected(place)) as shell,
        contextlib.closing(_connected(place)) as console,
    ):
        send(shell, Kind.REQUEST, Request(verb=Verb.RUN, argv=("cat",)).to_bytes())
        send(shell, Kind.INPUT, b"typed")
        send(console, Kind.REQUEST, Request(verb=Verb.CONSOLE).to_bytes())
        assert running.wait(_JOIN_S)
        assert Receiver(console).next() == (Kind.OUTPUT, b"login: ")

        threads = set(threading.enumerate()) - before

    assert [each.name for each in threads if not each.daemon] == []


def test_closing_the_entrance_ends_all_connections(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    console = Console("node", ours)
    with contextlib.ExitStack() as visits, theirs, contextlib.closing(console):
        with served_entrance(Enterable(agent=cast("Agent", None), console=console), tmp_path):
            visitors = [
                visits.enter_context(contextlib.closing(_connected_in(tmp_path))) for _ in range(2)
            ]
            theirs.sendall(b"login: ")
            for each in visitors:
                send(each, Kind.REQUEST, Request(verb=Verb.CONSOLE).to_bytes())
                assert Receiver(each).next() == (Kind.OUTPUT, b"login: ")

        assert [Receiver(each).next() for each in visitors] == [None, None]
        assert list(tmp_path.iterdir()) == []


def test_attached_console_shows_output_and_sends_keys(place: Place) -> None:
    with contextlib.closing(_connected(place)) as sock:
        place.serial.sendall(b"login: ")
        send(sock, Kind.REQUEST, Request(verb=Verb.CONSOLE).to_bytes())
        send(sock, Kind.INPUT, b"root\r")

        assert place.serial.recv(100) == b"root\r"
        assert Receiver(sock).next() == (Kind.OUTPUT, b"login: ")


def test_refused_request_is_raised_as_an_error_in_the_client(place: Place) -> None:
    with pytest.raises(HarnessError, match=r"There is no SSH server\."):
        client.ssh_entry_of(place.machine)


def test_request_for_ssh_access_reads_no_input(
    place: Place, stdin: Callable[[bytes], int]
) -> None:
    """The input belongs to the SSH client that is started next."""
    stdin(b"ls\n")

    with pytest.raises(HarnessError, match="no SSH server"):
        client.ssh_entry_of(place.machine)

    os.set_blocking(sys.stdin.fileno(), False)
    assert os.read(sys.stdin.fileno(), 100) == b"ls\n"


def test_refusal_with_undecodable_bytes_is_shown(tmp_path: Path) -> None:
    with (
        answered_by(tmp_path, b"\x13\x00\x00\x00\x06no \xff\xfe!") as machine,
        pytest.raises(HarnessError, match=r"^no \ufffd\ufffd!$"),
    ):
        client.run_in(machine, ["true"])


def test_error_for_a_machine_that_has_ended_has_its_name_and_its_process_id(
    tmp_path: Path,
) -> None:
    expected = "Machine 'node-1' or its process (PID 4711) has ended."

    with (
        answered_by(tmp_path, b"") as machine,
        pytest.raises(HarnessError, match=f"^{re.escape(expected)}$"),
    ):
        client.run_in(machine, ["true"])


def test_refusal_is_reported_even_if_the_client_sends_input_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"typed")
    os.close(writing)
    gone = threading.Event()

    class Input:
        """Standard input that the client reads only after the machine has ended."""

        @staticmethod
        def isatty() -> bool:
            return False

        @staticmethod
        def fileno() -> int:
            assert gone.wait(_JOIN_S)
            return reading

    monkeypatch.setattr(sys, "stdin", Input())
    with (
        answered_by(tmp_path, b"\x13\x00\x00\x00\x04full", gone) as machine,
        pytest.raises(HarnessError, match=r"^full$"),
    ):
        client.run_in(machine, ["true"])
    os.close(reading)


def test_request_with_an_unknown_verb_is_refused(place: Place) -> None:
    with contextlib.closing(_connected(place)) as sock:
        send(sock, Kind.REQUEST, b'{"verb": "dance", "argv": [], "env": {}, "terminal": null}')

        answer = Receiver(sock).next()

    assert answer is not None
    assert (answer[0], "dance" in answer[1].decode()) == (Kind.REFUSAL, True)


def test_machine_that_has_ended_cannot_be_entered(tmp_path: Path) -> None:
    gone = RunningMachine(
        id="node-1", name="n", purpose="", process=1, since=0, memory_mib=1, folder=tmp_path
    )
    expected = (
        "Machine 'node-1' can't be entered (No such file or directory), because it is just "
        "starting or ending. `harness ps` lists the machines that run."
    )
    with pytest.raises(HarnessError, match=f"^{re.escape(expected)}$"):
        client.run_in(gone, ["true"])


@contextlib.contextmanager
def answered_by(
    folder: Path, answer: bytes, gone: threading.Event | None = None
) -> Iterator[RunningMachine]:
    """Yield a machine that sends `answer` to its only client and then closes the connection."""
    folder = folder / "m"
    folder.mkdir()
    descriptor = os.open(folder, os.O_PATH)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"/proc/self/fd/{descriptor}/entrance")
    os.close(descriptor)
    listener.listen()
    listener.settimeout(_JOIN_S)

    def serve() -> None:
        accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(_JOIN_S)
            Receiver(accepted).next()
            accepted.sendall(answer)
        if gone is not None:
            gone.set()

    serving = threading.Thread(target=serve)
    serving.start()
    with listener:
        yield RunningMachine(
            id="node-1", name="n", purpose="", process=4711, since=0, memory_mib=1, folder=folder
        )
        serving.join(_JOIN_S)


def _connected(place: Place) -> socket.socket:
    return _connected_in(place.machine.folder)


def _connected_in(folder: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(_JOIN_S)
    descriptor = os.open(folder, os.O_PATH)
    sock.connect(f"/proc/self/fd/{descriptor}/entrance")
    os.close(descriptor)
    return sock
