"""A running command whose input is sent in pieces, with a fake guest."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from typing import TYPE_CHECKING

import pytest

from harness.agent import OLDEST_PROTOCOL, TERMINAL_PROTOCOL, frames
from harness.errors import HarnessError
from harness.machine.channels import started_command as module
from harness.machine.channels.agent import Agent
from harness.machine.channels.started_command import StartedCommand, started_command
from harness.provisioning.wait import Deadline
from suites.unit.machine.channels.played_guest import ENDED, PROGRAM, PlayedGuest, says

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioning.command import Argv

_JOIN_S = 30.0


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
        # The time limit of the command does not include the start of the agent.
        agent.link.wait_until_ready(Deadline.after(_JOIN_S))
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


def test_start_request_contains_the_arguments_and_environment_and_time_limit_of_the_command(
    guest: PlayedGuest,
) -> None:
    """The agent of an older harness runs a command without a terminal too."""
    guest.protocol = OLDEST_PROTOCOL
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


def test_terminal_has_the_requested_size_and_can_be_resized_and_signalled(
    guest: PlayedGuest,
) -> None:
    ends_with(guest, 0)

    with started(guest, "bash", terminal=(24, 80), fallback=["sh", "-i"]) as command:
        command.resize(50, 132)
        command.signal(15)
        command.feed_end()
        command.wait(lambda *_: None)

    (body,) = said_by(guest, frames.RUN)
    head = json.loads(body)
    assert (head["terminal"], head["fallback"]) == ({"rows": 24, "columns": 80}, ["sh", "-i"])
    (size,) = said_by(guest, frames.RESIZE)
    assert json.loads(size) == {"rows": 50, "columns": 132}
    assert said_by(guest, frames.SIGNAL) == [b"15"]


def test_terminal_is_refused_if_the_agent_is_from_an_older_harness(guest: PlayedGuest) -> None:
    """An old agent would ignore the request for a terminal, and fail at the first resize."""
    guest.protocol = TERMINAL_PROTOCOL - 1

    expected = (
        "This machine was saved by an older harness, whose agent can't open terminals. Use "
        "`harness ssh`, or a command whose output is piped, such as "
        "`harness shell --machine MACHINE -- dmesg | cat`."
    )
    with (
        pytest.raises(HarnessError, match=f"^{re.escape(expected)}$"),
        started(guest, "bash", terminal=(24, 80)),
    ):
        pass

    assert said_by(guest, frames.RUN) == []


def test_cancelled_command_has_no_exit_code(guest: PlayedGuest) -> None:
    def end(played: PlayedGuest, request: int, _: bytes) -> None:
        played.says(frames.RESULT, request, {**ENDED, "exit_code": None})

    guest.answers[frames.CANCEL] = end

    with started(guest) as command:
        command.cancel()
        assert command.wait(lambda *_: None) is None


def test_stdout_and_stderr_are_passed_on_as_they_arrive(guest: PlayedGuest) -> None:
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


def test_guest_gets_new_credit_after_each_256_kib_of_output(guest: PlayedGuest) -> None:
    """The credit equals the bytes received, and each byte is credited once."""
    quarter = b"x" * (256 << 10)

    def write(played: PlayedGuest, request: int, _: bytes) -> None:
        played.says(frames.STDOUT, request, quarter)

    def credit(played: PlayedGuest, request: int, _: bytes) -> None:
        if len(said_by(guest, frames.CREDIT)) < 3:
            played.says(frames.STDOUT, request, quarter)
        else:
            played.says(frames.RESULT, request, ENDED)

    guest.answers[frames.DATA_END] = write
    guest.answers[frames.CREDIT] = credit

    with started(guest, limit_s=_JOIN_S) as command:
        command.feed_end()
        assert command.wait(lambda *_: None) == 0

    assert said_by(guest, frames.CREDIT) == 3 * [len(quarter).to_bytes(4, "big")]


def test_credits_from_the_guest_are_added_to_the_input_window(guest: PlayedGuest) -> None:
    received = bytearray()
    has_room = threading.Event()
    content = bytes(frames.STDIN_WINDOW + 3)

    def make_room(played: PlayedGuest, request: int, _: bytes) -> None:
        for more in (2, 1):
            played.says(frames.CREDIT, request, more.to_bytes(4, "big"))
        played.says(frames.STDOUT, request, b"there is room")

    guest.answers[frames.RUN] = make_room
    guest.answers[frames.DATA] = lambda _guest, _request, payload: received.extend(payload)
    ends_with(guest, 0)

    with started(guest) as command:
        waiting = threading.Thread(target=command.wait, args=(lambda *_: has_room.set(),))
        feeding = threading.Thread(target=command.feed, args=(content,), daemon=True)
        waiting.start()
        assert has_room.wait(_JOIN_S)
        feeding.start()
        feeding.join(_JOIN_S)
        is_fed = not feeding.is_alive()
        command.feed_end()
        waiting.join(_JOIN_S)

    assert is_fed
    assert bytes(received) == content


def test_input_waits_while_the_guest_does_not_read(guest: PlayedGuest) -> None:
    """Input beyond the window is sent once the guest has room."""
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


def test_input_for_an_ended_command_is_discarded(guest: PlayedGuest) -> None:
    ends_with(guest, 0)

    with started(guest) as command:
        command.feed_end()
        command.wait(lambda *_: None)
        command.feed(b"too late")

    assert said_by(guest, frames.DATA) == []


@pytest.mark.parametrize("is_read", [True, False])
def test_feeding_of_input_ends_when_the_wait_for_the_command_ends(
    guest: PlayedGuest, *, is_read: bool
) -> None:
    """The wait may also end by an error, for example if nobody reads the output any more."""

    def end(played: PlayedGuest, request: int, _: bytes) -> None:
        if sum(map(len, said_by(guest, frames.DATA))) == frames.STDIN_WINDOW:
            played.says(frames.STDOUT, request, b"bye")
            played.says(frames.RESULT, request, ENDED)

    def read(*_: object) -> None:
        if not is_read:
            raise BrokenPipeError("nobody reads")

    guest.answers[frames.DATA] = end

    with started(guest) as command:
        content = bytes(2 * frames.STDIN_WINDOW)
        feeding = threading.Thread(target=command.feed, args=(content,), daemon=True)
        feeding.start()
        with contextlib.nullcontext() if is_read else pytest.raises(BrokenPipeError):
            command.wait(read)
        feeding.join(_JOIN_S)
        assert not feeding.is_alive()


def test_wait_for_an_endless_command_is_over_at_the_time_limit(
    guest: PlayedGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 0.05)

    with (
        started(guest, "sleep", "inf", limit_s=0.0) as command,
        pytest.raises(
            HarnessError,
            match=(
                r"^Machine 'node' took too long over the command 'sleep inf'; "
                r"last seen: it was still running\.$"
            ),
        ),
    ):
        command.wait(lambda *_: None)


def test_error_for_an_invalid_answer_mentions_its_command(guest: PlayedGuest) -> None:
    guest.answers[frames.DATA_END] = says((frames.RESULT, b"[]"))

    with started(guest, "cat", "a file") as command:
        command.feed_end()
        with pytest.raises(
            HarnessError,
            match=r"^Machine 'node' answered the command 'cat a file' in an unknown format: ",
        ):
            command.wait(lambda *_: None)
