"""The link to a guest's agent: its handshake, its end, and the errors after its end."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING

import pytest

from harness.agent import OLDEST_PROTOCOL, PROTOCOL, frames
from harness.errors import HarnessError
from harness.machine.channels import agent_link as module
from harness.machine.channels.agent import Agent
from harness.machine.channels.agent_link import Welcome
from suites.unit.machine.channels.played_guest import (
    ENDED,
    PROGRAM,
    PlayedGuest,
    nothing,
    says,
    soon,
    wait_until,
    welcome,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.machine.channels.agent_link import Call
    from harness.provisioning.wait import Deadline

_HELLO_SEEN = "last seen of the agent: its welcome message in boot boot-1."


def test_welcome_shows_the_boot_and_the_protocol_of_a_restored_agent(
    guest: PlayedGuest, agent: Agent
) -> None:
    guest.protocol = OLDEST_PROTOCOL
    guest.starts()

    welcomed = agent.wait_until_ready(soon())

    assert welcomed == Welcome(boot_id="boot-1", has_nonce=True, protocol=OLDEST_PROTOCOL)
    assert agent.link.welcome == welcomed


@pytest.mark.usefixtures("ready")
def test_each_client_has_a_different_session_id(guest: PlayedGuest) -> None:
    """The session id distinguishes answers to an earlier client."""
    other = PlayedGuest()
    other.starts()
    second = Agent("node", other.ours, PROGRAM)
    second.wait_until_ready(soon())
    second.close()
    other.ends()

    hellos = guest.payloads(frames.HELLO) + other.payloads(frames.HELLO)
    assert len({json.loads(hello)["session"] for hello in hellos}) == 2


def test_welcome_from_another_session_is_ignored(guest: PlayedGuest, agent: Agent) -> None:
    def answer(guest: PlayedGuest, request: int, payload: bytes) -> None:
        guest.theirs.sendall(b"half a frame" + frames.SYNC_FRAME)
        guest.says(frames.RESULT, request, {"session": "another", "digest": guest.digest})
        guest.says(frames.ERROR, request, payload)
        guest.has_nonce = False
        welcome(guest, request, payload)

    guest.answers[frames.HELLO] = answer
    guest.starts()

    assert not agent.wait_until_ready(soon()).has_nonce


def test_request_longer_than_the_buffer_of_the_socket_arrives_whole(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.REMEMBER] = says((frames.RESULT, {}))
    nonce = "0123456789abcdef" * (3 << 16)

    ready.remember(nonce, soon())

    parts = guest.payloads(frames.MORE) + guest.payloads(frames.REMEMBER)
    assert json.loads(b"".join(parts)) == {"nonce": nonce}


def test_answer_that_arrives_in_parts_is_joined(guest: PlayedGuest, ready: Agent) -> None:
    whole = frames.to_json({"nonce": "n" * 200_000, "before_ns": 0})
    parts = [
        whole[at : at + frames.MAX_PAYLOAD] for at in range(0, len(whole), frames.MAX_PAYLOAD)
    ]
    more = [(frames.MORE, part) for part in parts[:-1]]
    guest.answers[frames.SETTLE] = says(*more, (frames.RESULT, parts[-1]))

    assert [ready.settle(soon()).nonce for _ in range(2)] == ["n" * 200_000] * 2


def test_requests_in_flight_fail_if_the_agent_restarts_and_later_requests_succeed(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.RUN] = lambda guest, _request, _payload: guest.asks_for_program(b"again")

    with (
        ready.link.call("a wait", lambda n: frames.encode(frames.WAIT_UNIT, n), soon()) as wait,
        pytest.raises(HarnessError, match="restarted during the command 'tool'"),
    ):
        ready.run(["tool"], timeout_s=20)

    with pytest.raises(HarnessError, match="restarted during a wait"):
        wait.next(soon())
    assert ready.ping(soon()) < 20
    # The command is not sent again, since the guest would run it twice.
    assert guest.kinds().count("run") == 1


def test_restarted_agent_is_not_ready_before_its_next_hello(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.HELLO] = nothing
    guest.asks_for_program(b"again")
    wait_until(lambda: guest.kinds().count("hello") == 2)

    with pytest.raises(
        HarnessError,
        match="not ready in time for a ping; last seen of the agent: its loader requested",
    ):
        ready.ping(soon(0.02))

    assert ready.link.welcome is None
    assert "ping" not in guest.kinds()


def test_end_of_the_machine_ends_every_wait_and_all_later_requests(
    guest: PlayedGuest, ready: Agent
) -> None:
    errors: list[str] = []

    def wait() -> None:
        try:
            ready.wait_for_file("/never", soon(60))
        except HarnessError as error:
            errors.append(str(error))

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: guest.kinds().count("wait-file") == 3)
    guest.ends()
    for thread in waiting:
        thread.join(20)

    reason = (
        "The agent of machine 'node' can't be reached any more: the machine has ended; "
        f"{_HELLO_SEEN}"
    )
    assert errors == [f"{reason} That ended the wait for '/never'."] * 3
    with pytest.raises(HarnessError, match=f"^{re.escape(reason)}$"):
        ready.ping(soon())
    assert ready.link.welcome is None


def test_wait_for_the_agent_ends_if_the_machine_ends_first(
    guest: PlayedGuest, agent: Agent
) -> None:
    guest.answers[frames.HELLO] = lambda guest, _request, _payload: guest.hangs_up()
    guest.starts()

    with pytest.raises(
        HarnessError, match=r"the machine has ended; last seen of the agent: nothing at"
    ):
        agent.wait_until_ready(soon())
    with pytest.raises(HarnessError, match="the machine has ended"):
        agent.settle(soon())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\x99 no frame at all", "sent invalid data: A frame has the unknown kind 0x99"),
        (
            frames.encode(frames.ERROR, 0, b'{"message": "lost"}'),
            """reports a broken stream: b'{"message": "lost"}'""",
        ),
    ],
    ids=["kind", "thread"],
)
def test_peer_that_sends_invalid_data_ends_every_wait(
    guest: PlayedGuest, ready: Agent, said: bytes, reason: str
) -> None:
    guest.answers[frames.RUN] = lambda guest, _request, _payload: guest.theirs.sendall(said)

    with pytest.raises(HarnessError) as ended:
        ready.run(["tool"], timeout_s=60)

    assert str(ended.value) == (
        f"The agent of machine 'node' {reason}; {_HELLO_SEEN} That ended the command 'tool'."
    )


def test_invalid_welcome_is_quoted_and_ends_the_wait_for_the_hello(
    guest: PlayedGuest, agent: Agent
) -> None:
    failures: list[str] = []

    def wait() -> None:
        try:
            agent.wait_until_ready(soon(60))
        except HarnessError as error:
            failures.append(str(error))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    guest.protocol = float(PROTOCOL)
    guest.starts()
    waiting.join(10)

    (failure,) = failures
    assert re.match(
        r"The agent of machine 'node' could not be understood: ValueError\(.*\); last", failure
    )


def test_refused_request_or_invalid_answer_is_reported_and_no_cancel_is_sent(
    guest: PlayedGuest, ready: Agent
) -> None:
    answers: tuple[tuple[int, bytes | Mapping[str, object], str], ...] = (
        (frames.RESULT, b"[]", "answered the wait for 'a.service' .* in an unknown format"),
        (frames.ERROR, {"message": "no memory"}, "refused the wait for .*: no memory"),
        (frames.ERROR, b"[]", "answered the wait for 'a.service' .* in an unknown format"),
    )
    for kind, answer, reason in answers:
        guest.answers[frames.WAIT_UNIT] = says((kind, answer))

        with pytest.raises(HarnessError, match=f"^Machine 'node' {reason}"):
            ready.wait_for_unit("a.service", soon())

    ready.ping(soon())
    assert guest.kinds() == ["hello", *["wait-unit"] * 3, "ping"]


def test_error_is_raised_only_after_the_cancelled_command_has_ended(
    guest: PlayedGuest, ready: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CANCEL_S", 20.0)
    looks: list[Deadline] = []

    def cancel(guest: PlayedGuest, request: int, _payload: bytes) -> None:
        guest.says(frames.STDOUT, request, b"its last words")
        # The client has read the output, and waits for the next frame.
        wait_until(lambda: len(looks) == 2)
        guest.says(frames.RESULT, request, ENDED)

    def give_up(call: Call) -> None:
        look = call.next

        def take(deadline: Deadline) -> tuple[int, bytes] | None:
            looks.append(deadline)
            return look(deadline)

        monkeypatch.setattr(call, "next", take)
        raise ValueError("given up")

    guest.answers[frames.CANCEL] = cancel
    with (
        pytest.raises(ValueError, match="given up"),
        ready.link.call("a command", lambda n: frames.encode(frames.RUN, n), soon()) as call,
    ):
        give_up(call)

    assert call.has_ended
    assert guest.payloads(frames.CANCEL) == [b""]


def test_reason_for_the_cancellation_of_a_command_is_raised_even_if_the_machine_ends(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.RUN] = says((frames.STDOUT, b"x"))
    guest.answers[frames.CANCEL] = lambda guest, _request, _payload: guest.hangs_up()

    def refuse(_chunk: bytes) -> None:
        raise ValueError("not this")

    with pytest.raises(ValueError, match="not this"):
        ready.stream(["tool"], timeout_s=5, on_stdout=refuse)


def test_nothing_is_sent_for_a_request_that_has_ended(guest: PlayedGuest, ready: Agent) -> None:
    guest.answers[frames.RUN] = says((frames.RESULT, ENDED))
    with ready.link.call("a command", lambda n: frames.encode(frames.RUN, n), soon()) as call:
        ready.link.answer(call, soon())

    ready.link.send(frames.DATA, call, b"too late")

    ready.ping(soon())
    assert guest.kinds() == ["hello", "run", "ping"]


def test_closed_agent_link_ends_requests_in_flight_and_refuses_later_requests(
    guest: PlayedGuest, ready: Agent
) -> None:
    errors: list[str] = []

    def wait() -> None:
        try:
            ready.wait_for_file("/never", soon(60))
        except HarnessError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: "wait-file" in guest.kinds())

    ready.close()

    waiting.join(20)
    with pytest.raises(HarnessError) as refused:
        ready.ping(soon())
    reason = f"The connection to the agent of machine 'node' was closed; {_HELLO_SEEN}"
    assert errors == [f"{reason} That ended the wait for '/never'."]
    assert str(refused.value) == reason
    assert "agent-node" not in {thread.name for thread in threading.enumerate()}
    assert guest.ours.fileno() == -1
