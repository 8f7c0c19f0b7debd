"""The host's client of the guest agent, with a fake guest."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from harness.agent import OLDEST_PROTOCOL, PROTOCOL, frames
from harness.errors import HarnessError
from harness.machine.channels import agent as agent_module
from harness.machine.channels import agent_link
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock
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
    from collections.abc import Callable

    from harness.machine.channels.agent import Agent


def test_error_for_a_silent_guest_says_that_no_frame_arrived(agent: Agent) -> None:
    with pytest.raises(
        HarnessError,
        match="not ready in time for its first request; last seen of the agent: nothing at all",
    ):
        agent.wait_until_ready(soon(0.02))


def test_loader_gets_the_program_and_then_the_greeting(guest: PlayedGuest, agent: Agent) -> None:
    answer, guest.answers[frames.HELLO] = guest.answers[frames.HELLO], nothing
    guest.answers[frames.PROGRAM_END] = lambda guest, _request, _payload: guest.answers.update(
        {frames.HELLO: answer}
    )
    guest.starts()
    guest.asks_for_program(b"first")
    guest.asks_for_program(b"first")
    agent.wait_until_ready(soon())
    # A guest that answers the ping has read all earlier frames.
    agent.ping(soon())

    program = b"".join(payload for kind, _, payload in guest.seen if kind == frames.PROGRAM)
    (digest,) = (payload for kind, _, payload in guest.seen if kind == frames.PROGRAM_END)
    assert program == PROGRAM
    assert digest.decode() == hashlib.sha256(PROGRAM).hexdigest()
    assert {r for kind, r, _ in guest.seen if kind in {frames.PROGRAM, frames.PROGRAM_END}} == {0}
    assert guest.kinds()[-2:] == ["hello", "ping"]


def test_agent_of_another_harness_is_refused(guest: PlayedGuest, agent: Agent) -> None:
    ours, guest.digest = guest.digest, "other"
    guest.starts()

    with pytest.raises(
        HarnessError,
        match=rf"another version of the harness \(digest other, expected {ours}\).*remove that checkpoint",
    ):
        agent.wait_until_ready(soon())


@pytest.mark.parametrize("protocol", [OLDEST_PROTOCOL - 1, PROTOCOL + 1])
def test_agent_with_an_unknown_protocol_is_refused(
    guest: PlayedGuest, agent: Agent, protocol: int
) -> None:
    guest.protocol = protocol
    guest.starts()

    with pytest.raises(HarnessError, match=r"'node' is of another version of the harness"):
        agent.wait_until_ready(soon())


def test_answer_before_the_welcome_is_ignored(guest: PlayedGuest, agent: Agent) -> None:
    """A restored agent may still answer requests of the template's host, with the same numbers."""
    hello: list[tuple[int, bytes]] = []
    guest.answers[frames.HELLO] = lambda _, *asked: hello.append(asked)

    def settle(guest: PlayedGuest, request: int, _payload: bytes) -> None:
        guest.theirs.sendall(frames.SYNC_FRAME)
        guest.says(frames.RESULT, request, {"nonce": "another's", "before_ns": 0})
        welcome(guest, *hello[0])
        guest.says(frames.RESULT, request, {"nonce": "its own", "before_ns": 0})

    guest.answers[frames.SETTLE] = settle
    guest.starts()

    assert agent.settle(soon()).nonce == "its own"


def test_settle_request_is_the_first_request_to_a_clone(guest: PlayedGuest, agent: Agent) -> None:
    guest.answers[frames.SETTLE] = says(
        (frames.RESULT, {"nonce": "n-1", "before_ns": 0, "wall_ns": 1})
    )
    guest.answers[frames.HELLO] = nothing
    answers: list[object] = []
    settling = threading.Thread(
        target=lambda: answers.append(agent.settle(soon(), hostname="node-2", instance_id="i-2"))
    )
    settling.start()
    # Both requests are sent before the guest answers the first request.
    wait_until(lambda: len(guest.theirs.recv(4096, socket.MSG_PEEK)) > 200)
    guest.answers[frames.HELLO] = welcome
    guest.starts()
    settling.join(20)

    assert guest.kinds() == ["hello", "settle"]
    asked = json.loads(guest.seen[1][2])
    assert (asked["hostname"], asked["instance_id"]) == ("node-2", "i-2")
    assert len(bytes.fromhex(asked["entropy"])) == 64
    (settled,) = answers
    assert isinstance(settled, agent_module.SettleResult)
    assert settled.nonce == "n-1"
    assert settled.clock_was_off_s == pytest.approx(-asked["wall_ns"] / 1e9)
    assert 0 <= settled.clock_error_s < 20


def test_settle_request_that_the_loader_discards_is_sent_again(
    guest: PlayedGuest, agent: Agent
) -> None:
    answers: list[object] = []
    settling = [
        threading.Thread(target=lambda: answers.append(agent.settle(soon()))) for _ in range(2)
    ]
    for thread in settling:
        thread.start()
    wait_until(lambda: guest.theirs.recv(4096, socket.MSG_PEEK).count(b'"wall_ns"') == 2)
    # The loader discards the requests.
    lost = re.findall(rb'{[^{]*"wall_ns"[^}]*}', guest.theirs.recv(4096))
    guest.answers[frames.SETTLE] = says(
        (frames.RESULT, {"nonce": None, "before_ns": 0, "wall_ns": 1})
    )
    guest.starts()
    guest.asks_for_program(b"first")
    for thread in settling:
        thread.join(20)

    assert len(answers) == 2
    # The repeated requests have the time at which they were repeated.
    asked = guest.payloads(frames.SETTLE)
    assert [
        json.loads(new)["wall_ns"] > json.loads(old)["wall_ns"] for new in asked for old in lost
    ] == [True] * 4


def test_result_has_the_output_and_exit_code_and_duration_of_a_command(
    guest: PlayedGuest, ready: Agent
) -> None:
    reply = {"exit_code": 124, "timed_out": True, "duration_s": 2.5}
    guest.answers[frames.RUN] = says(
        (frames.STDOUT, b"\xff"), (frames.STDERR, b"oh"), (frames.RESULT, reply)
    )

    result = ready.run(["tool"], timeout_s=2, stdin="in", env={"A": "1"})

    assert (result.argv, result.stdout, result.stderr) == (("tool",), "\ufffd", "oh")
    assert (result.exit_code, result.timed_out, result.duration_s) == (124, True, 2.5)
    (asked,) = (payload for kind, _, payload in guest.seen if kind == frames.RUN)
    assert asked.endswith(b"\nin")


def _gives(seconds: float) -> Callable[[float], Deadline]:
    """Return a function that gives each command a deadline after `seconds`."""
    return lambda _asked: Deadline.after(seconds)


def test_host_ends_a_command_at_its_limit_of_guest_time(guest: PlayedGuest, ready: Agent) -> None:
    """The guest gets 30 times the limit, because only the host measures guest time."""
    ready.link.guest_deadline = _gives(0.0)
    guest.answers[frames.RUN] = says((frames.STDOUT, b"so far"))
    guest.answers[frames.CANCEL] = lambda guest, request, _: guest.says(
        frames.RESULT, request, ENDED
    )

    result = ready.run(["tool"], timeout_s=2)

    assert (result.exit_code, result.timed_out) == (124, True)
    (asked,) = (payload for kind, _, payload in guest.seen if kind == frames.RUN)
    assert json.loads(asked)["limit_s"] == 60
    assert guest.kinds()[-2:] == ["cancel", "ping"]


def test_deadline_of_the_caller_ends_a_command_before_its_limit_of_guest_time(
    guest: PlayedGuest, ready: Agent
) -> None:
    """The guest still gets the limit of the command."""
    ready.link.guest_deadline = _gives(20.0)
    guest.answers[frames.CANCEL] = says((frames.RESULT, ENDED))

    result = ready.run(["tool"], timeout_s=15, deadline=soon(0.0))

    assert (result.exit_code, result.timed_out) == (124, True)
    assert json.loads(guest.payloads(frames.RUN)[0])["limit_s"] == 15


def test_command_within_its_limit_of_guest_time_is_not_cancelled(
    guest: PlayedGuest, ready: Agent
) -> None:
    ready.link.guest_deadline = _gives(20.0)
    guest.answers[frames.RUN] = says((frames.STDOUT, b"done"), (frames.RESULT, ENDED))

    result = ready.run(["tool"], timeout_s=0.0)

    assert (result.stdout, result.exit_code, result.timed_out) == ("done", 0, False)
    assert "cancel" not in guest.kinds()


def test_host_sends_at_most_one_window_of_unread_stdin_and_explains_the_delay(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.CANCEL] = says((frames.RESULT, {"cancelled": True}))
    ready.link.explain_delay = lambda: "its emulated GPU 'gpu0' is stuck."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_module, "_GRACE_S", 0.05)
        with pytest.raises(
            HarnessError,
            match=r"took too long over the command 'cat'.*Meanwhile, its emulated GPU 'gpu0' is stuck\.",
        ):
            ready.stream(["cat"], timeout_s=0.0, stdin=bytes(1 << 20))

    sent = sum(len(payload) for kind, _, payload in guest.seen if kind == frames.DATA)
    assert sent == frames.STDIN_WINDOW


def test_exception_of_a_callback_is_raised_and_ends_the_command(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.RUN] = says((frames.STDOUT, b"x"))
    guest.answers[frames.CANCEL] = says((frames.RESULT, {"cancelled": True}))

    def refuse(_chunk: bytes) -> None:
        raise KeyboardInterrupt("not this")

    with pytest.raises(KeyboardInterrupt, match="not this"):
        ready.stream(["tool"], timeout_s=5, on_stdout=refuse)
    assert guest.kinds()[-1] == "cancel"


def test_error_has_the_refusal_message_of_the_guest(guest: PlayedGuest, ready: Agent) -> None:
    guest.answers[frames.RUN] = says((frames.ERROR, {"message": "Cannot allocate memory"}))

    with pytest.raises(HarnessError, match=r"'node' refused .*tool.*: Cannot allocate memory\."):
        ready.run(["tool"], timeout_s=5)


def test_answer_longer_than_the_limit_is_refused(
    guest: PlayedGuest, ready: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_MESSAGE", 8 * frames.MAX_PAYLOAD)
    part = (frames.MORE, bytes(frames.MAX_PAYLOAD))
    guest.answers[frames.REMEMBER] = says(*[part] * 9)

    with pytest.raises(HarnessError, match=r"longer than \d+ bytes"):
        ready.remember("nonce", soon())


def test_request_to_a_guest_that_does_not_read_its_channel_ends_at_its_deadline(
    guest: PlayedGuest, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests to a stopped machine queue up and end at their deadlines."""
    guest.theirs.sendall(frames.SYNC_FRAME)
    session = json.loads(guest.theirs.recv(4096)[len(frames.SYNC_FRAME) + 9 :])["session"]
    welcome(guest, 1, frames.to_json({"session": session}))
    agent.wait_until_ready(soon())
    monkeypatch.setattr(agent_link, "_CANCEL_S", 0.01)
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(HarnessError, match="took too long"):
            agent.write_bytes("/file", bytes(1 << 20), soon(0.01))

    assert time.monotonic() - started < 15


def test_request_over_the_size_limit_is_refused_before_it_is_sent(
    ready: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_MESSAGE", 2 * frames.MAX_PAYLOAD)

    with pytest.raises(HarnessError, match="can't send"):
        ready.run(["x" * (2 * frames.MAX_PAYLOAD)], timeout_s=5)


def test_file_is_read_if_the_guest_sends_as_many_bytes_as_it_reports(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.READ] = says(
        (frames.DATA, b"one "), (frames.DATA, b"two"), (frames.RESULT, {"size": 7})
    )
    assert ready.read_bytes("/etc/x", soon()) == b"one two"
    guest.answers[frames.READ] = says((frames.RESULT, {"size": None}))
    assert ready.read_bytes("/etc/x", soon()) is None
    for size in (7, 2, 0):
        guest.answers[frames.READ] = says((frames.DATA, b"one"), (frames.RESULT, {"size": size}))
        with pytest.raises(HarnessError, match=f"sent 3 bytes of '/etc/x', but reports {size}"):
            ready.read_bytes("/etc/x", soon())


def test_file_content_is_split_into_the_requested_byte_ranges(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.READ_RANGES] = says(
        (frames.DATA, b"one t"), (frames.DATA, b"wo"), (frames.RESULT, {"size": 7})
    )
    assert ready.read_ranges("/dev/vda", [(0, 3), (9, 4)], soon()) == [b"one", b" two"]
    assert guest.seen[-1][2] == b'{"path":"/dev/vda","ranges":[[0,3],[9,4]]}'
    with pytest.raises(HarnessError, match="sent 7 bytes of '/dev/vda', but was asked for 8"):
        ready.read_ranges("/dev/vda", [(0, 8)], soon())


def test_failing_unit_is_reported_at_once(guest: PlayedGuest, ready: Agent) -> None:
    reply = {
        "ActiveState": "failed",
        "SubState": "failed",
        "Result": "exit-code",
        "LoadState": "loaded",
    }
    guest.answers[frames.WAIT_UNIT] = says((frames.RESULT, reply))

    with pytest.raises(
        HarnessError, match=r"'a.service' .* to be active, but is failed \(failed\)"
    ):
        ready.wait_for_unit("a.service", soon())
    assert ready.wait_for_unit("a.service", soon(), "failed").result == "exit-code"


def test_unit_that_does_not_become_active_is_reported_at_the_deadline(
    guest: PlayedGuest, ready: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    parse = agent_module.UnitStatus.from_json

    def parse_late(content: bytes) -> agent_module.UnitStatus:
        clock.advance(30)
        return parse(content)

    monkeypatch.setattr(agent_module.UnitStatus, "from_json", parse_late)
    guest.answers[frames.CANCEL] = says((frames.RESULT, {"cancelled": True}))
    reply = {"ActiveState": "inactive", "SubState": "dead", "Result": "", "LoadState": "not-found"}
    guest.answers[frames.WAIT_UNIT] = says((frames.DATA, reply))

    with pytest.raises(HarnessError, match=r"last seen: inactive \(dead\).*'not-found'"):
        ready.wait_for_unit("a.service", Deadline.after(20, clock))


def test_threads_that_share_an_agent_get_their_own_answers(
    guest: PlayedGuest, ready: Agent
) -> None:
    def echo(guest: PlayedGuest, request: int, payload: bytes) -> None:
        guest.says(frames.DATA, request, payload)
        guest.says(frames.RESULT, request, {"size": len(payload)})

    guest.answers[frames.READ] = echo
    wrong: list[int] = []

    def ask(number: int) -> None:
        for _ in range(8):
            reply = ready.read_bytes(f"/{number}", soon())
            if reply is None or json.loads(reply)["path"] != f"/{number}":
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []
