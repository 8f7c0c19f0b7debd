"""The content of each request to a guest's agent, and the errors of failed requests."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, TypeAlias

import pytest

from harness.agent import frames
from harness.errors import HarnessError
from harness.machine.channels import agent as module
from harness.machine.channels.agent import Agent, SettleResult, UnitStatus
from suites.unit.machine.channels.played_guest import (
    ENDED,
    PlayedGuest,
    nothing,
    says,
    soon,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.provisioning.wait import Deadline

Ask: TypeAlias = "Callable[[Agent, Deadline], object]"

_CANCELLED = says((frames.RESULT, {"cancelled": True}))
_CHUNK = 65_536
_STEP = 4 * _CHUNK
_INLINE = 32 << 10
_MIB = 1 << 20


def _run(agent: Agent, deadline: Deadline) -> object:
    return agent.run(["sleep", "two words"], timeout_s=deadline.remaining_s() - module._GRACE_S)


_REQUESTS: tuple[tuple[Ask, str, str], ...] = (
    (lambda agent, by: agent.ping(by), "a ping", "no answer"),
    (
        lambda agent, by: agent.remember("nonce", by),
        "the request to store a random number",
        "no answer",
    ),
    (
        lambda agent, by: agent.settle(by),
        "the request to set the time, random numbers and name of the restored guest",
        "its welcome message in boot boot-1",
    ),
    (_run, "the command \"sleep 'two words'\"", "it was still running"),
    (
        lambda agent, by: agent.read_bytes("/etc/x", by),
        "the request to read '/etc/x'",
        "0 bytes",
    ),
    (
        lambda agent, by: agent.read_ranges("/dev/vda", [(0, 3)], by),
        "the request to read '/dev/vda'",
        "0 bytes",
    ),
    (
        lambda agent, by: agent.write_bytes("/etc/x", b"x", by),
        "the request to write '/etc/x'",
        "it was being written",
    ),
    (lambda agent, by: agent.wait_for_file("/x", by), "the wait for '/x'", "it was not there"),
    (
        lambda agent, by: agent.wait_for_unit("a.service", by, "failed"),
        "the wait for 'a.service' to be failed",
        "no state at all",
    ),
)


def test_timeout_error_has_the_request_and_the_last_frame(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.PING] = nothing
    guest.answers[frames.CANCEL] = _CANCELLED
    for ask, what, seen in _REQUESTS:
        with pytest.raises(HarnessError) as late:
            ask(ready, soon(0.005))

        assert str(late.value) == f"Machine 'node' took too long over {what}; last seen: {seen}."


_MALFORMED: tuple[
    tuple[tuple[int, bytes | Mapping[str, object]], Callable[[Agent], object], str], ...
] = (
    (
        (frames.SETTLE, {"nonce": None}),
        lambda agent: agent.settle(soon()),
        "the request to set the time, random numbers and name of the restored guest in an unknown format: KeyError('before_ns').",
    ),
    (
        (frames.READ, {}),
        lambda agent: agent.read_bytes("/etc/x", soon()),
        "the request to read '/etc/x' in an unknown format: KeyError('size').",
    ),
    (
        (frames.RUN, {}),
        lambda agent: agent.run(["tool"], timeout_s=20),
        "the command 'tool' in an unknown format: KeyError('exit_code').",
    ),
    (
        (frames.WAIT_UNIT, b"[]"),
        lambda agent: agent.wait_for_unit("a.service", soon()),
        (
            "the wait for 'a.service' to be active in an unknown format: "
            "ProtocolError(\"A frame's payload is not a JSON object: b'[]'.\")."
        ),
    ),
)


def test_malformed_answer_is_reported_with_its_request(guest: PlayedGuest, ready: Agent) -> None:
    for (kind, reply), ask, refusal in _MALFORMED:
        guest.answers[kind] = says((frames.RESULT, reply))
        with pytest.raises(HarnessError) as refused:
            ask(ready)

        assert str(refused.value) == f"Machine 'node' answered {refusal}"


def test_settle_result_of_a_machine_without_a_nonce_has_no_nonce(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.SETTLE] = says((frames.RESULT, {"nonce": None, "before_ns": 0}))

    settled = ready.settle(soon())

    assert isinstance(settled, SettleResult)
    assert settled.nonce is None
    assert settled.clock_error_s > 0
    (asked,) = guest.payloads(frames.SETTLE)
    assert settled.clock_was_off_s == -json.loads(asked)["wall_ns"] / 1e9


def test_short_command_needs_only_one_request(guest: PlayedGuest, ready: Agent) -> None:
    guest.answers[frames.RUN] = says((frames.STDOUT, b"6.1.0\n"), (frames.RESULT, ENDED))

    ready.run(["uname"], timeout_s=5, env={"LANG": "C"})

    (body,) = guest.payloads(frames.RUN)
    head = {"argv": ["uname"], "env": {"LANG": "C"}, "limit_s": 5, "stdin": "none"}
    assert body == frames.to_json(head) + b"\n"
    assert guest.kinds() == ["hello", "run"]


def test_short_input_is_part_of_the_request(guest: PlayedGuest, ready: Agent) -> None:
    guest.answers[frames.RUN] = says((frames.RESULT, ENDED))
    for content in (b"", b"x" * _INLINE):
        guest.seen.clear()

        ready.stream(["cat"], timeout_s=5, stdin=content)

        head, _, body = guest.payloads(frames.RUN)[0].partition(b"\n")
        assert json.loads(head)["stdin"] == "all"
        assert body == content
        assert guest.kinds() == ["run"]


def test_long_input_is_sent_after_the_request(guest: PlayedGuest, ready: Agent) -> None:
    """Input within the window of the guest needs no credit, and neither does its end."""
    guest.answers[frames.DATA_END] = says((frames.RESULT, ENDED))
    for size in (_INLINE + 1, frames.STDIN_WINDOW):
        guest.seen.clear()
        content = b"x" * size

        ready.stream(["cat"], timeout_s=5, stdin=content)

        (asked,) = guest.payloads(frames.RUN)
        assert json.loads(asked)["stdin"] == "more"
        assert asked.endswith(b"}\n")
        assert b"".join(guest.payloads(frames.DATA)) == content
        # A guest that answers the ping has read all earlier frames.
        kinds = [kind for kind, _ in itertools.groupby(guest.kinds())]
        assert kinds == ["run", "data", "data-end", "ping"]


def test_host_sends_credit_for_long_output_in_steps(guest: PlayedGuest, ready: Agent) -> None:
    guest.answers[frames.CREDIT] = lambda guest, request, _: (
        guest.says(frames.RESULT, request, ENDED) if guest.kinds().count("credit") == 3 else None
    )
    for kind in (frames.STDOUT, frames.STDERR):
        guest.seen.clear()
        guest.answers[frames.RUN] = says(*[(kind, bytes(_CHUNK))] * 12)

        ready.stream(["flood"], timeout_s=5)

        assert guest.payloads(frames.CREDIT) == [_STEP.to_bytes(4, "big")] * 3
        assert guest.kinds() == ["run", "credit", "credit", "credit", "ping"]


def test_host_sends_credit_in_steps_while_it_reads_a_long_file(
    guest: PlayedGuest, ready: Agent
) -> None:
    content = b"block of a file." * (3 * _STEP // 16)
    chunks = [content[at : at + _CHUNK] for at in range(0, len(content), _CHUNK)]
    guest.answers[frames.READ] = says(*[(frames.DATA, chunk) for chunk in chunks])
    guest.answers[frames.CREDIT] = lambda guest, request, _: (
        guest.says(frames.RESULT, request, {"size": len(content)})
        if guest.kinds().count("credit") == 3
        else None
    )

    assert ready.read_bytes("/etc/x", soon()) == content
    assert guest.payloads(frames.CREDIT) == [_STEP.to_bytes(4, "big")] * 3
    assert guest.kinds() == ["hello", "read", "credit", "credit", "credit", "ping"]


def test_command_output_over_the_limit_is_refused(
    guest: PlayedGuest, ready: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_COMMAND_OUTPUT_MIB", "1")
    guest.answers[frames.CANCEL] = _CANCELLED
    for kind in (frames.STDOUT, frames.STDERR):
        whole = [(kind, bytes(_CHUNK))] * 16
        guest.answers[frames.RUN] = says(*whole, (frames.RESULT, ENDED))
        result = ready.run(["yes", "no"], timeout_s=20)
        assert len(result.stdout + result.stderr) == _MIB
        guest.answers[frames.RUN] = says(*whole, (kind, b"x"))

        with pytest.raises(
            HarnessError,
            match=r"'yes no' in machine 'node'.*1 MiB.*'command-output-mib'.*HARNESS_LIMIT_COMMAND_OUTPUT_MIB",
        ):
            ready.run(["yes", "no"], timeout_s=20)


def test_file_over_the_size_limit_is_refused(
    guest: PlayedGuest, ready: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_GUEST_FILE_MIB", "1")
    whole = [(frames.DATA, bytes(_CHUNK))] * 16
    guest.answers[frames.CANCEL] = _CANCELLED
    guest.answers[frames.READ] = says(*whole, (frames.RESULT, {"size": _MIB}))
    assert ready.read_bytes("/var/log/x", soon()) == bytes(_MIB)
    guest.answers[frames.READ] = says(*whole, (frames.DATA, b"x"))

    with pytest.raises(
        HarnessError,
        match=r"'/var/log/x' of machine 'node'.*1 MiB.*'guest-file-mib'.*HARNESS_LIMIT_GUEST_FILE_MIB",
    ):
        ready.read_bytes("/var/log/x", soon())


def test_short_file_is_written_by_one_request(guest: PlayedGuest, ready: Agent) -> None:
    guest.answers[frames.WRITE] = says((frames.RESULT, {}))
    for content in (b"", b"x" * _INLINE):
        guest.seen.clear()

        ready.write_bytes("/etc/x", content, soon())

        head, _, body = guest.payloads(frames.WRITE)[0].partition(b"\n")
        assert json.loads(head) == {"path": "/etc/x", "mode": 0o644, "has_more": False}
        assert body == content
        assert guest.kinds() == ["write"]


def test_long_file_is_written_after_the_request_in_chunks_within_the_credit_of_the_guest(
    guest: PlayedGuest, ready: Agent
) -> None:
    content = bytes(range(256)) * 1024 + b"end"

    def take(guest: PlayedGuest, request: int, _payload: bytes) -> None:
        guest.says(frames.CREDIT, request, (1).to_bytes(4, "big"))

    guest.answers[frames.DATA] = take
    guest.answers[frames.DATA_END] = says((frames.RESULT, {}))

    ready.write_bytes("/etc/x", content, soon(), 0o600)

    (asked,) = guest.payloads(frames.WRITE)
    assert json.loads(asked) == {"path": "/etc/x", "mode": 0o600, "has_more": True}
    assert asked.endswith(b"}\n")
    sent = guest.payloads(frames.DATA)
    assert b"".join(sent) == content
    assert [len(part) for part in sent] == [_CHUNK] * 4 + [1] * 3


def test_wait_requests_contain_the_file_path_or_the_unit_and_its_expected_state(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.WAIT_FILE] = says((frames.RESULT, {}))
    guest.answers[frames.WAIT_UNIT] = says(
        (frames.DATA, {"ActiveState": "activating"}), (frames.RESULT, {"ActiveState": "inactive"})
    )

    ready.wait_for_file("/run/x", soon())
    status = ready.wait_for_unit("a.service", soon(), "inactive")

    assert status == UnitStatus(active="inactive", sub="", result="", load="")
    asked = guest.payloads(frames.WAIT_FILE) + guest.payloads(frames.WAIT_UNIT)
    assert [json.loads(each) for each in asked] == [
        {"path": "/run/x"},
        {"unit": "a.service", "active": "inactive"},
    ]


def test_unit_in_an_unknown_state_is_reported_as_not_active(
    guest: PlayedGuest, ready: Agent
) -> None:
    guest.answers[frames.WAIT_UNIT] = says((frames.RESULT, {"trouble": "no bus"}))

    with pytest.raises(
        HarnessError, match=r"'a\.service' of machine 'node'.*be active, but is unknown \(no bus\)"
    ):
        ready.wait_for_unit("a.service", soon())
