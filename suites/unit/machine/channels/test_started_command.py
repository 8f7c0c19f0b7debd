"""A command whose input comes piece by piece, with a guest that a test plays."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING

import pytest

from harness.agent import OLDEST_PROTOCOL, TERMINAL_PROTOCOL, frames
from harness.errors import HarnessError
from harness.machine.channels import started_command as module
from harness.machine.channels.agent import Agent
from harness.machine.channels.started_command import StartedCommand, started_command
from suites.unit.machine.channels.played_guest import ENDED, PROGRAM, PlayedGuest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioning.command import Argv

_JOIN_S = 5.0


@pytest.fixture
def guest() -> Iterator[PlayedGuest]:
    played = PlayedGuest()
    played.starts()
    yield played
    played.ends()


@contextlib.contextmanager
def started(
    guest: PlayedGuest,
    *argv: str,
    limit_s: float = 30.0,
    terminal: tuple[int, int] | None = None,
    fallback: Argv = (),
) -> Iterator[StartedCommand]:
    agent = Agent("node", guest.ours, PROGRAM)
    try:
        with started_command(
            agent.link,
            argv or ("cat",),
            limit_s=limit_s,
            env={"LANG": "C"},
            terminal=terminal,
            fallback=fallback,
        ) as command:
            yield command
    finally:
        agent.close()


def said_by(guest: PlayedGuest, kind: int) -> list[bytes]:
    return [payload for seen, _, payload in guest.seen if seen == kind]


def ends_with(guest: PlayedGuest, code: object) -> None:
    def end(played: PlayedGuest, request: int, _: bytes) -> None:
        played.says(frames.RESULT, request, {**ENDED, "exit_code": code})

    guest.answers[frames.DATA_END] = end


def test_command_starts_with_all_that_it_needs_and_more_input_to_come(guest: PlayedGuest) -> None:
    ends_with(guest, 7)

    with started(guest, "cat", "a file", limit_s=12.5) as command:
        command.feed_end()
        assert command.wait(lambda *_: None) == 7

    (body,) = said_by(guest, frames.RUN)
    assert json.loads(body) == {
        "argv": ["cat", "a file"],
        "env": {"LANG": "C"},
        "limit_s": 12.5,
        "stdin": "more",
    }
    assert body.endswith(b"\n")


def test_command_in_a_terminal_has_its_size_and_may_get_another(guest: PlayedGuest) -> None:
    ends_with(guest, 0)

    with started(guest, "bash", terminal=(24, 80), fallback=["sh", "-i"]) as command:
        command.resize(50, 132)
        command.feed_end()
        command.wait(lambda *_: None)

    (body,) = said_by(guest, frames.RUN)
    head = json.loads(body)
    assert (head["terminal"], head["fallback"]) == ({"rows": 24, "columns": 80}, ["sh", "-i"])
    (size,) = said_by(guest, frames.RESIZE)
    assert json.loads(size) == {"rows": 50, "columns": 132}


def test_agent_of_an_older_harness_gives_no_terminal(guest: PlayedGuest) -> None:
    """It would ignore the wish, and end the connection at the first new size."""
    guest.protocol = TERMINAL_PROTOCOL - 1

    with (
        pytest.raises(HarnessError, match=r"saved by an older harness.*`harness ssh`"),
        started(guest, "bash", terminal=(24, 80)),
    ):
        pass

    assert said_by(guest, frames.RUN) == []


def test_agent_of_an_older_harness_runs_commands_without_a_terminal(guest: PlayedGuest) -> None:
    guest.protocol = OLDEST_PROTOCOL
    ends_with(guest, 7)

    with started(guest) as command:
        command.feed_end()
        assert command.wait(lambda *_: None) == 7


def test_cancelled_command_has_no_exit_code(guest: PlayedGuest) -> None:
    def end(played: PlayedGuest, request: int, _: bytes) -> None:
        played.says(frames.RESULT, request, {**ENDED, "exit_code": None})

    guest.answers[frames.CANCEL] = end

    with started(guest) as command:
        command.cancel()
        assert command.wait(lambda *_: None) is None


def test_signal_reaches_the_command_by_its_number(guest: PlayedGuest) -> None:
    ends_with(guest, 0)

    with started(guest) as command:
        command.signal(15)
        command.feed_end()
        command.wait(lambda *_: None)

    assert said_by(guest, frames.SIGNAL) == [b"15"]


def test_output_is_passed_on_by_its_kind_as_it_arrives(guest: PlayedGuest) -> None:
    def echo(played: PlayedGuest, request: int, payload: bytes) -> None:
        played.says(frames.STDOUT, request, payload)
        played.says(frames.STDERR, request, b"hm")
        played.says(frames.RESULT, request, ENDED)

    guest.answers[frames.DATA] = echo
    output: list[tuple[int, bytes]] = []

    with started(guest) as command:
        command.feed(b"typed")
        assert command.wait(lambda kind, content: output.append((kind, content))) == 0

    assert output == [(frames.STDOUT, b"typed"), (frames.STDERR, b"hm")]


def test_guest_is_credited_with_what_was_read_of_both_outputs(guest: PlayedGuest) -> None:
    """Else it would stop after a window's worth, and wait for ever."""
    half = b"x" * (128 << 10)
    credited = threading.Event()

    def write(played: PlayedGuest, request: int, _: bytes) -> None:
        played.says(frames.STDOUT, request, half[:-1])
        played.says(frames.STDERR, request, half)
        played.says(frames.STDOUT, request, b"xyz")

    def credit(played: PlayedGuest, request: int, payload: bytes) -> None:
        credited.set()
        assert int.from_bytes(payload, "big") == (256 << 10) + 2
        played.says(frames.STDOUT, request, b"a little more")
        played.says(frames.RESULT, request, ENDED)

    guest.answers[frames.DATA_END] = write
    guest.answers[frames.CREDIT] = credit

    with started(guest) as command:
        command.feed_end()
        assert command.wait(lambda *_: None) == 0

    assert credited.is_set()
    assert len(said_by(guest, frames.CREDIT)) == 1


def test_input_waits_while_the_guest_does_not_read(guest: PlayedGuest) -> None:
    """What is more than its window comes once the guest has room."""
    content = bytes(range(256)) * ((frames.STDIN_WINDOW + 1000) // 256 + 1)
    full = threading.Event()
    received = bytearray()
    requests: list[int] = []

    def read(_: PlayedGuest, request: int, payload: bytes) -> None:
        received.extend(payload)
        requests.append(request)
        if len(received) == frames.STDIN_WINDOW:
            full.set()

    guest.answers[frames.DATA] = read
    ends_with(guest, 0)

    with started(guest) as command:

        def feed() -> None:
            command.feed(content)
            command.feed_end()

        feeding = threading.Thread(target=feed)
        waiting = threading.Thread(target=lambda: command.wait(lambda *_: None))
        feeding.start()
        waiting.start()
        assert full.wait(_JOIN_S)
        assert len(received) == frames.STDIN_WINDOW
        guest.says(frames.CREDIT, requests[0], (1 << 20).to_bytes(4, "big"))
        feeding.join(_JOIN_S)
        waiting.join(_JOIN_S)
        assert not feeding.is_alive()
        assert not waiting.is_alive()

    assert bytes(received) == content
    assert max(len(each) for each in said_by(guest, frames.DATA)) <= frames.MAX_PAYLOAD


def test_input_of_a_command_that_has_ended_goes_nowhere(guest: PlayedGuest) -> None:
    ends_with(guest, 0)

    with started(guest) as command:
        command.feed_end()
        command.wait(lambda *_: None)
        command.feed(b"too late")

    assert said_by(guest, frames.DATA) == []


def test_who_feeds_a_command_that_ends_waits_no_longer(guest: PlayedGuest) -> None:
    def end(played: PlayedGuest, request: int, _: bytes) -> None:
        if sum(map(len, said_by(guest, frames.DATA))) == frames.STDIN_WINDOW:
            played.says(frames.RESULT, request, ENDED)

    guest.answers[frames.DATA] = end

    with started(guest) as command:
        feeding = threading.Thread(target=command.feed, args=(bytes(2 * frames.STDIN_WINDOW),))
        feeding.start()
        assert command.wait(lambda *_: None) == 0
        feeding.join(_JOIN_S)
        assert not feeding.is_alive()


def test_command_without_an_end_is_not_awaited_beyond_its_limit(
    guest: PlayedGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 0.2)

    with (
        started(guest, "sleep", "inf", limit_s=0.0) as command,
        pytest.raises(HarnessError, match=r"'sleep inf'"),
    ):
        command.wait(lambda *_: None)


@pytest.mark.parametrize("argv", [[], "ls"])
def test_what_is_no_command_is_refused(guest: PlayedGuest, argv: list[str]) -> None:
    agent = Agent("node", guest.ours, PROGRAM)

    with (
        contextlib.closing(agent),
        pytest.raises((TypeError, ValueError)),
        started_command(agent.link, argv, limit_s=1.0, env={}),
    ):
        pass

    assert said_by(guest, frames.RUN) == []
