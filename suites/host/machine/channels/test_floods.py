"""Endless output of a guest is read up to a limit, and the error names the limit."""

from __future__ import annotations

import contextlib
import socket
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agent import frames
from harness.errors import HarnessError
from harness.limits import LimitError
from harness.machine.channels import agent as agent_module
from harness.machine.channels import agent_link
from harness.machine.channels.agent import Agent
from harness.machine.channels.agent_link import Call
from harness.machine.channels.console import Console
from harness.machine.channels.console_recording import ConsoleRecorder, read_recording
from harness.machine.channels.event_log import EventLog, QmpEvent, names
from harness.provisioning.wait import Deadline
from suites.unit.machine.channels.played_guest import PROGRAM, PlayedGuest, nothing, soon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MIB = 1 << 20


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def peak_mib() -> float:
    return tracemalloc.get_traced_memory()[1] / _MIB


@pytest.mark.usefixtures("traced")
def test_repeated_program_requests_of_the_loader_do_not_queue_programs(
    guest: PlayedGuest, agent: Agent
) -> None:
    """Without this limit, 10,000 requests of 25 bytes would queue 1 GiB of programs."""
    asked = b"".join(frames.encode(frames.BOOT, 0, b"%016d" % each) for each in range(10_000))
    guest.theirs.sendall(frames.SYNC_FRAME + asked)
    # The client reads this error after all 10,000 requests.
    guest.theirs.sendall(frames.encode(frames.ERROR, 0, b"end"))

    with pytest.raises(HarnessError, match="reports a broken stream"):
        agent.wait_until_ready(soon())
    assert peak_mib() < 20


def test_loader_that_requests_the_program_again_gets_the_whole_program(
    guest: PlayedGuest, agent: Agent
) -> None:
    for each in range(20):
        guest.asks_for_program(b"%d" % each)
    guest.theirs.settimeout(20.0)
    sent = b""
    while b"harness-agent" not in sent[-400:] or len(sent) < len(PROGRAM):
        sent += guest.theirs.recv(1 << 20)

    # Like a loader, the test skips the data that answers earlier requests.
    last = sent.rindex(frames.SYNC_FRAME + frames.encode(frames.PROGRAM, 0, PROGRAM[: 32 << 10]))
    found = list(frames.Decoder(is_synced=False).feed(sent[last:]))
    assert b"".join(payload for kind, _, payload in found if kind == frames.PROGRAM) == PROGRAM
    agent.close()


@pytest.mark.usefixtures("traced")
def test_unread_output_of_a_command_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_AGENT_BACKLOG_MIB", "2")
    call = Call(1, "the command 'yes'", lambda _request: b"")

    def flood() -> None:
        for _ in range(1_000_000):
            call.put(frames.STDOUT, b"y")
            call.put(frames.STDERR, b"n")

    with pytest.raises(frames.ProtocolError, match=r"'yes'.* 'agent-backlog-mib'"):
        flood()
    assert peak_mib() < 8


@pytest.mark.parametrize(("size", "count"), [(1, 10_000), (60_000, 20)])
def test_output_that_was_read_does_not_count_towards_the_limit_of_unread_output(
    monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_AGENT_BACKLOG_MIB", "1")
    call = Call(1, "the command 'yes'", lambda _request: b"")
    said = (frames.STDOUT, b"y" * size)

    for _ in range(count):
        call.put(*said)
        assert call.next(soon()) == said


def test_single_bytes_of_output_are_joined_into_frames() -> None:
    call = Call(1, "the command 'yes'", lambda _request: b"")
    for _ in range(frames.MAX_PAYLOAD + 1):
        call.put(frames.STDOUT, b"y")
    call.put(frames.RESULT, b"{}")

    answers = [call.next(soon()) for _ in range(3)]

    assert answers == [
        (frames.STDOUT, b"y" * frames.MAX_PAYLOAD),
        (frames.STDOUT, b"y"),
        (frames.RESULT, b"{}"),
    ]


def test_agent_answers_after_the_result_are_dropped() -> None:
    call = Call(1, "the command 'yes'", lambda _request: b"")
    call.put(frames.RESULT, b"{}")
    call.put(frames.STDOUT, b"y")
    call.put(frames.RESULT, b"{}")

    assert call.next(soon()) == (frames.RESULT, b"{}")
    assert call.next(Deadline.after(0.0)) is None


def test_command_that_writes_without_end_ends_at_its_time_limit(
    guest: PlayedGuest, ready: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest that ignores flow control always has more output."""
    guest.answers[frames.RUN] = nothing
    guest.answers[frames.CANCEL] = nothing
    monkeypatch.setattr(agent_module, "_GRACE_S", 0.0)
    monkeypatch.setattr(agent_link, "_CANCEL_S", 0.1)
    call_seen: list[bytes] = []

    def flood(chunk: bytes) -> None:
        call_seen.append(chunk)
        request = next(each for kind, each, _ in guest.seen if kind == frames.RUN)
        guest.says(frames.STDOUT, request, chunk)
        guest.says(frames.STDERR, request, chunk)

    guest.answers[frames.RUN] = lambda guest, request, _: guest.says(frames.STDOUT, request, b"y")

    with pytest.raises(HarnessError, match="took too long over the command 'yes'"):
        ready.stream(["yes"], timeout_s=0.1, on_stdout=flood, on_stderr=flood)
    assert call_seen


@pytest.mark.parametrize(
    "reply",
    [
        b"[" * 900 + b"]" * 900,
        b"9" * 5000,
        b'{"exit_code": ' + b"9" * 5000 + b"}",
        b'{"exit_code": 1e999, "duration_s": 1, "timed_out": false}',
        b'{"exit_code": 0, "duration_s": "x", "timed_out": false}',
        b'{"exit_code": [], "duration_s": 1, "timed_out": false}',
        b"{}",
        b"null",
        b"\xff",
        b"\0",
    ],
    ids=lambda reply: reply[:20].decode(errors="replace"),
)
def test_malformed_answer_is_reported_in_a_sentence(
    guest: PlayedGuest, ready: Agent, reply: bytes
) -> None:
    for kind in (frames.RUN, frames.READ, frames.SETTLE, frames.WAIT_UNIT):
        guest.answers[kind] = lambda guest, request, _: guest.says(frames.RESULT, request, reply)

    with pytest.raises(HarnessError):
        ready.run(["true"], timeout_s=5)
    with pytest.raises(HarnessError):
        ready.read_bytes("/etc/x", soon())
    with pytest.raises(HarnessError):
        ready.settle(soon())
    with pytest.raises(HarnessError):
        ready.wait_for_unit("a.service", soon())


@given(
    stream=st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.builds(
                frames.encode,
                st.sampled_from(sorted(frames.NAMES)),
                st.integers(0, 3),
                st.one_of(
                    st.binary(max_size=40),
                    st.sampled_from(
                        [b"{}", b"[[", b'{"message": []}', b'{"size": 1e9}', b"9" * 5000]
                    ),
                ),
            ),
        ),
        max_size=12,
    ),
    sync=st.booleans(),
)
def test_any_bytes_from_a_guest_raise_at_most_a_harness_error(
    stream: list[bytes], *, sync: bool
) -> None:
    """Any bytes from the agent give a value or a HarnessError for each kind of request."""
    ours, theirs = socket.socketpair()
    agent = Agent("node", ours, PROGRAM[:200])
    try:
        theirs.sendall((frames.SYNC_FRAME if sync else b"") + b"".join(stream))
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.suppress(HarnessError):
            agent.settle(soon())
        with contextlib.suppress(HarnessError):
            agent.run(["true"], timeout_s=5)
        with contextlib.suppress(HarnessError):
            agent.read_bytes("/x", soon())
    finally:
        agent.close()
        theirs.close()


def test_console_wait_fails_if_the_guest_prints_more_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_CONSOLE_MIB", "1")
    ours, theirs = socket.socketpair()
    console = Console("node", ours)
    try:
        theirs.settimeout(0.3)
        with pytest.raises(TimeoutError):
            theirs.sendall(bytes(64 * _MIB))

        with pytest.raises(HarnessError, match=r"printed too much .*'console-mib'.*CONSOLE_MIB"):
            console.wait_for("login:", soon(), what="a login prompt")
    finally:
        console.close()
        theirs.close()


def test_wait_for_the_console_keeps_little_of_its_output_in_memory() -> None:
    """Pexpect keeps all output since the last match."""
    ours, theirs = socket.socketpair()
    console = Console("node", ours)
    try:
        theirs.sendall(b"x" * _MIB)
        with pytest.raises(HarnessError):
            console.wait_for("login:", Deadline.after(0.3), what="a login prompt")
        theirs.sendall(b"login:")

        console.wait_for("login:", soon(), what="a login prompt")

        assert len(console._spawn.before or "") < 50_000
    finally:
        console.close()
        theirs.close()


def test_recording_ends_at_its_limit_with_a_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_CONSOLE_RECORDING_MIB", "1")
    path = tmp_path / "serial.cast"
    recorder = ConsoleRecorder(path, title="t")
    for _ in range(10_000):
        recorder(b"\x00\x01" * 20)
    recorder.close()

    assert path.stat().st_size < 1.1 * _MIB
    assert "'console-recording-mib'" in path.read_text().splitlines()[-1]
    assert len(list(read_recording(path))) > 1_000


def test_recording_that_is_too_long_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "serial.cast"
    path.write_text('{"version": 2}\n[1, "o", "' + "x" * (2 * _MIB) + '"]\n')

    with pytest.raises(
        HarnessError, match=r"serial\.cast:2: A line of an asciicast may have at most 1"
    ):
        list(read_recording(path))
    monkeypatch.setenv("HARNESS_LIMIT_CONSOLE_RECORDING_MIB", "1")
    with path.open("r+b") as file:
        file.truncate(200 << 30)
    with pytest.raises(LimitError, match="'console-recording-mib'"):
        list(read_recording(path))


@pytest.mark.parametrize(
    "line", ["[" * 200_000, "[" + "9" * 5000 + ', "o", "x"]', '[1e400, "o", "x"]']
)
def test_error_for_a_line_beyond_a_limit_has_the_line_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "serial.cast"
    path.write_text(f'{{"version": 2}}\n{line}\n')

    with pytest.raises(HarnessError, match=r"serial\.cast:2: A line of an asciicast is"):
        list(read_recording(path))


def test_error_mentions_the_machine_that_sent_too_many_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_MACHINE_EVENTS", "100")
    log = EventLog("node", advice="Look there.")
    for _ in range(1000):
        log.add(QmpEvent(name="RESET", at_s=0.0))
    log.end()

    assert len(log.events) == 100
    with pytest.raises(
        LimitError, match=r"'node'.* more than 100 entries.*The wait was for its stop"
    ):
        log.wait_for("its stop", names("STOP"), soon())
    assert log.wait_for("a reset", names("RESET"), soon()).name == "RESET"


def test_event_wait_error_mentions_only_the_last_events() -> None:
    log = EventLog("node", advice="Look there.")
    for _ in range(1000):
        log.add(QmpEvent(name="RESET", at_s=0.0))

    with pytest.raises(HarnessError, match="seen: 950 earlier, RESET, RESET") as late:
        log.wait_for("its stop", names("STOP"), Deadline.after(0.0))
    assert len(str(late.value)) < 1000
