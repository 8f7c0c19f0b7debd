"""Requests and answers, with a fake process table."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from harness.agent import PROTOCOL, commands, files, frames, jobs, port
from harness.agent.loop import NOBODY, READABLE, Loop
from suites.unit.agent.fakes import RUN, Bench, error_of, open_files, passes, result_of, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suites.unit.agent.fakes import Started


# Sessions


def test_hello_request_is_answered_with_session_and_protocol_and_boot_id(bench: Bench) -> None:
    bench.greets()

    assert result_of(bench.gets()) == {
        "session": "session-1",
        "protocol": PROTOCOL,
        "digest": "digest",
        "boot_id": "boot-1",
        "has_nonce": False,
    }


def test_command_of_an_earlier_client_is_killed_and_its_output_is_not_sent_to_a_new_client(
    bench: Bench,
) -> None:
    left = start(bench)
    left.says(b"for nobody")
    bench.greets("session-2")

    assert [kind for kind, _, _ in bench.gets() if kind != frames.STDOUT] == [frames.RESULT]
    assert left.signals == [signal.SIGKILL]
    left.ends(-9)
    assert bench.gets() == []
    assert left.is_reaped


def test_second_hello_of_the_same_client_does_not_end_its_command(bench: Bench) -> None:
    running = start(bench)
    bench.greets()
    bench.gets()

    assert running.signals == []
    running.ends()


def test_settle_request_sets_hostname_and_instance_id_of_the_clone(bench: Bench) -> None:
    bench.sends(frames.REMEMBER, 2, {"nonce": "n-1"})
    assert [(kind, payload) for kind, _, payload in bench.gets()] == [(frames.RESULT, b"{}")]
    assert bench.system.is_prepared
    bench.greets("session-of-the-clone")
    bench.sends(
        frames.SETTLE,
        3,
        {"wall_ns": 5_000, "entropy": "00ff", "hostname": "node-2", "instance_id": "i-2"},
    )

    welcome, settled = (json.loads(payload) for _, _, payload in bench.gets())

    assert welcome["has_nonce"] is True
    assert settled == {"nonce": "n-1", "before_ns": 1_000, "wall_ns": 5_000}
    system = bench.system
    assert (system.entropy, system.hostname, system.instance_id) == (b"\0\xff", "node-2", "i-2")


def test_settle_request_without_names_does_not_change_hostname_or_instance_id(
    bench: Bench,
) -> None:
    bench.sends(frames.SETTLE, 3, {"wall_ns": 5_000, "entropy": ""})

    assert result_of(bench.gets())["nonce"] is None
    assert (bench.system.hostname, bench.system.instance_id) == (None, None)


# Commands


def test_output_of_a_command_is_sent_before_the_command_ends(bench: Bench) -> None:
    process = start(bench)
    process.says(b"\x00\xff no line")
    os.write(process.stderr, b"oh")
    process.ends(3)

    got = bench.gets()

    assert (process.argv, process.env) == (RUN["argv"], RUN["env"])
    assert sorted(got[:-1]) == [
        (frames.STDOUT, 2, b"\x00\xff no line"),
        (frames.STDERR, 2, b"oh"),
    ]
    assert result_of(got) == {"exit_code": 3, "timed_out": False}
    assert process.is_reaped


def test_ping_is_answered_before_queued_output_and_command_result_is_sent_after_it(
    bench: Bench,
) -> None:
    process = start(bench)
    for _ in range(6):
        process.says(bytes(65_536))
        bench.turns(3)
    process.ends()
    bench.sends(frames.PING, 9)
    bench.turns()

    got = bench.gets()

    assert got[-1][:2] == (frames.RESULT, 2)
    assert got[-2][0] == frames.STDOUT
    assert (frames.RESULT, 9, b"{}") in got[:-2]
    assert sum(len(payload) for kind, _, payload in got if kind == frames.STDOUT) == 6 * 65_536


def test_command_result_is_sent_only_after_all_processes_close_the_output(bench: Bench) -> None:
    process = start(bench)
    process.exits(0)

    assert bench.gets() == []
    process.closes_output()
    assert result_of(bench.gets()) == {"exit_code": 0, "timed_out": False}


def test_command_gets_sigterm_at_its_time_limit_and_is_killed_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for request, limit_s in ((2, 60), (3, 0), (4, -1)):
        process = start(bench, request, limit_s=limit_s)

        passes(bench, monkeypatch, max(0, limit_s))
        assert process.signals == [signal.SIGTERM]
        passes(bench, monkeypatch, commands.KILL_AFTER_S)
        assert process.signals == [signal.SIGTERM, signal.SIGKILL]
        process.says(b"last words")
        process.ends(-9)

        got = bench.gets()
        assert (frames.STDOUT, request, b"last words") in got
        assert result_of(got) == {"exit_code": 124, "timed_out": True}


@pytest.mark.parametrize(
    "has_exited", [True, False], ids=["held output", "process that no signal ends"]
)
def test_result_with_exit_code_124_is_sent_even_if_the_timed_out_command_does_not_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, has_exited: bool
) -> None:
    process = start(bench)
    if has_exited:
        process.exits(0)
        bench.turns()
    for _ in range(3):
        passes(bench, monkeypatch, 60)

    assert result_of(bench.gets()) == {"exit_code": 124, "timed_out": True}
    assert process.is_reaped is has_exited
    process.closes_output()
    if not has_exited:
        process.exits(-9)
        bench.turns()
    assert process.is_reaped


def test_exit_code_is_126_or_127_if_a_program_cannot_be_run(bench: Bench) -> None:
    for request, refusal, code, words in (
        (2, FileNotFoundError(errno.ENOENT, "No such file"), 127, b"tool: No such file\n"),
        (3, PermissionError(errno.EACCES, "Permission denied"), 126, b"tool: Permission denied\n"),
        (4, OSError(errno.ENOEXEC, "Exec format error"), 126, b"tool: Exec format error\n"),
    ):
        bench.processes.refusal = refusal
        bench.sends(frames.RUN, request, frames.to_json(RUN) + b"\n")

        got = bench.gets()

        assert got[0] == (frames.STDERR, request, words)
        assert result_of(got) == {"exit_code": code, "timed_out": False}


def test_agent_reports_lack_of_resources_and_keeps_running(bench: Bench) -> None:
    for code in (errno.ENOMEM, errno.EAGAIN, errno.ENFILE, errno.EMFILE):
        bench.processes.refusal = OSError(code, "Cannot allocate memory")
        bench.sends(frames.RUN, 2, frames.to_json(RUN) + b"\n")
        bench.sends(frames.PING, 3)

        got = bench.gets()

        assert error_of(got) == "Cannot allocate memory"
        assert (frames.RESULT, 3, b"{}") in got


def test_error_of_one_request_does_not_end_another_request(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole = start(bench, 2), start(bench, 3)
    write = jobs.Job.output
    (tmp_path / "file").write_bytes(bytes(5 * frames.MAX_PAYLOAD) + b"end")

    def fail(job: jobs.Job, kind: int, chunk: bytes) -> None:
        if job.request == 2 or chunk == b"end":
            raise MemoryError
        write(job, kind, chunk)

    monkeypatch.setattr(jobs.Job, "output", fail)
    bench.sends(frames.READ, 4, {"path": str(tmp_path / "file")})
    assert error_of(bench.gets()) == "MemoryError: "
    broken.says(b"x")
    whole.says(b"y")
    got = bench.gets()

    assert (frames.STDOUT, 3, b"y") in got
    assert error_of(got) == "MemoryError: "
    assert broken.signals == [signal.SIGKILL]
    broken.ends(-9)
    whole.ends()
    bench.turns()


def test_cancelled_command_is_killed(bench: Bench) -> None:
    process = start(bench)
    bench.sends(frames.SIGNAL, 2, b"10")
    bench.sends(frames.CANCEL, 2)

    assert result_of(bench.gets()) == {"cancelled": True}
    assert process.signals == [signal.SIGUSR1, signal.SIGKILL]
    process.ends(-9)
    bench.turns()
    assert process.is_reaped


def test_stdin_is_accepted_in_the_run_request_and_in_later_frames(bench: Bench) -> None:
    bench.sends(frames.RUN, 2, frames.to_json({**RUN, "stdin": "all"}) + b"\na\nb")
    bench.turns()
    process = bench.processes.started[-1]
    assert (process.reads(), process.reads()) == (b"a\nb", b"")

    streamed = start(bench, 3, stdin="more")
    bench.sends(frames.DATA, 3, b"one ")
    bench.sends(frames.DATA, 3, b"two")
    bench.turns()
    assert streamed.reads() == b"one two"
    bench.sends(frames.DATA_END, 3)
    bench.turns()
    assert streamed.reads() == b""
    for each in (process, streamed):
        each.ends()


def test_host_gets_credit_for_stdin_that_the_command_has_read(bench: Bench) -> None:
    process = start(bench, stdin="more")
    for _ in range(3):
        bench.sends(frames.DATA, 2, bytes(60_000))

    assert bench.gets() == []  # The pipe accepts less than a credit step.
    process.reads()
    given = [int.from_bytes(p, "big") for kind, _, p in bench.gets() if kind == frames.CREDIT]
    assert 65_536 <= sum(given) <= 180_000
    process.ends()


def credit_of(got: list[tuple[int, int, bytes]]) -> int:
    return sum(int.from_bytes(part, "big") for kind, _, part in got if kind == frames.CREDIT)


def test_input_longer_than_a_pipe_reaches_the_command_completely(bench: Bench) -> None:
    """The pipe takes the input in parts while the command reads."""
    sent = bytes(range(256)) * 900
    process = start(bench, stdin="more")
    for at in range(0, len(sent), 60_000):
        bench.sends(frames.DATA, 2, sent[at : at + 60_000])
        bench.turns(3)
    bench.sends(frames.DATA_END, 2)
    bench.turns()
    read = b""
    while len(read) < len(sent):
        assert process.stdin is not None
        read += os.read(process.stdin, 5000)
        bench.turns(3)

    assert read == sent
    assert process.reads() == b""
    process.ends()


def test_agent_polls_stdin_for_writability_only_while_input_is_queued(bench: Bench) -> None:
    """The empty pipe has room, which poll would report continuously."""
    process = start(bench, stdin="more")
    watched = len(bench.server.loop._callbacks)
    for _ in range(2):
        for _ in range(2):
            bench.sends(frames.DATA, 2, bytes(60_000))
            bench.turns(3)
        assert len(bench.server.loop._callbacks) == watched + 1
        read = 0
        while read < 120_000:
            read += len(process.reads())
            bench.turns(3)
        assert len(bench.server.loop._callbacks) == watched
    process.ends()


def test_host_gets_credit_for_stdin_after_the_command_has_closed_stdin(bench: Bench) -> None:
    """Otherwise the host would wait for ever to send the rest of the input."""
    process = start(bench, stdin="more")
    for _ in range(4):
        bench.sends(frames.DATA, 2, bytes(60_000))
        bench.turns(3)
    assert process.stdin is not None
    os.close(process.stdin)
    before = credit_of(bench.gets())
    for _ in range(3):
        bench.sends(frames.DATA, 2, bytes(60_000))
        bench.turns(3)

    assert before + credit_of(bench.gets()) > 7 * 60_000 - 65_536
    process.ends()


def test_size_of_queued_output_is_limited_while_the_host_does_not_read(bench: Bench) -> None:
    """Queued output is bounded, and other requests are still answered."""
    process = start(bench)
    os.set_blocking(process.stdout, False)
    accepted = 0
    for _ in range(500):
        bench.turns(4)
        try:
            accepted += os.write(process.stdout, bytes(65_536))
        except BlockingIOError:
            continue

    assert accepted < port._ROOM_BYTES + frames.OUTPUT_WINDOW
    assert bench.server._port._output_bytes <= port._ROOM_BYTES + 2 * frames.MAX_PAYLOAD
    bench.sends(frames.PING, 9)
    got = bench.gets()
    place = got.index((frames.RESULT, 9, b"{}"))
    behind = sum(len(payload) for _, _, payload in got[place:])
    assert behind > frames.MAX_PAYLOAD
    assert sum(len(payload) for kind, _, payload in got if kind == frames.STDOUT) == accepted
    process.ends()


def test_stdout_and_stderr_are_sent_only_within_the_credit_of_the_host(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "OUTPUT_WINDOW", 4)
    process = start(bench)
    os.write(process.stderr, b"8 bytes.")
    assert bench.gets() == [(frames.STDERR, 2, b"8 bytes.")]
    process.says(b"out")
    os.write(process.stderr, b"err")
    bench.sends(frames.CREDIT, 2, (4).to_bytes(4, "big"))
    assert bench.gets() == [], "Four bytes were sent before their credit."
    bench.sends(frames.CREDIT, 2, (100).to_bytes(4, "big"))

    assert sorted(bench.gets()) == [(frames.STDOUT, 2, b"out"), (frames.STDERR, 2, b"err")]
    process.ends()


def test_command_that_has_ended_leaves_no_descriptor_open(bench: Bench) -> None:
    before = open_files()
    terminals = (None, {"rows": 1, "columns": 1})
    for request, (terminal, stdin, is_cancelled) in enumerate(
        itertools.product(terminals, ("none", "more"), (False, True)), 2
    ):
        process = start(bench, request, stdin=stdin, terminal=terminal)
        if is_cancelled:
            bench.sends(frames.CANCEL, request)
            bench.turns()
        process.ends()
        if process.stdin not in (None, process.stdout):
            os.close(process.stdin)
        bench.turns()

        assert process.is_reaped
        assert open_files() == before, (terminal, stdin, is_cancelled)


# The port


def flood(bench: Bench, process: Started) -> None:
    """Let a command write until the agent stops reading, since the host reads nothing."""
    os.set_blocking(process.stdout, False)
    for _ in range(40):
        with contextlib.suppress(BlockingIOError):
            os.write(process.stdout, bytes(65_536))
        bench.turns(2)


def test_new_client_of_a_flooded_port_gets_no_answers_to_earlier_requests(bench: Bench) -> None:
    flooding = start(bench)
    flood(bench, flooding)
    bench.sends(frames.PING, 9)
    bench.turns()
    bench.greets("session-2")

    got = bench.gets()

    assert [frame[:2] for frame in got if frame[0] != frames.STDOUT] == [(frames.RESULT, 1)]
    assert got[-1][0] == frames.RESULT
    own = start(bench, 3)
    own.says(b"of the new client")
    assert bench.gets() == [(frames.STDOUT, 3, b"of the new client")]
    for each in (flooding, own):
        each.ends()
    bench.turns()


def test_command_ends_normally_after_the_host_disconnected_from_a_flooded_port(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(bench)
    flood(bench, process)
    bench.disconnects()
    process.ends()
    bench.turns()

    assert process.is_reaped
    bench.reconnects()
    passes(bench, monkeypatch, 1)
    bench.greets("session-2")
    bench.turns()
    # The rest of a frame that the earlier host began to read is not sent.
    assert bench.host.recv(100).startswith(frames.SYNC_FRAME)


def test_agent_ends_on_a_read_error_of_the_port_even_after_a_failed_write(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that attributes the error to the request would never read from the port again."""
    process = start(bench)
    with monkeypatch.context() as left:
        left.setattr(bench.device, "write", lambda _: None)
        process.says(b"for nobody")
        bench.turns()
    passes(bench, monkeypatch, 1)
    bench.sends(frames.PING, 3)

    def fail() -> bytes:
        raise RuntimeError("no port")

    monkeypatch.setattr(bench.device, "read", fail)
    with pytest.raises(RuntimeError, match="no port"):
        bench.turns()
    process.ends()


def test_host_that_reconnects_to_a_flooded_port_gets_a_sync_frame_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(bench)
    flood(bench, process)
    bench.disconnects()
    bench.reconnects()
    bench.greets("session-2")
    passes(bench, monkeypatch, 1)

    assert bench.host.recv(len(frames.SYNC_FRAME)) == frames.SYNC_FRAME
    process.ends()
    bench.turns()


@pytest.mark.parametrize("is_late", [False, True])
def test_error_in_one_read_request_does_not_block_another_read_request(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    (tmp_path / "file").write_bytes(bytes(600_000))
    for request in (2, 3):
        bench.sends(frames.READ, request, {"path": str(tmp_path / "file")})
    bench.turns()
    write = jobs.Job.output

    def fail(job: jobs.Job, kind: int, chunk: bytes) -> None:
        if job.request == 2 and (not is_late or len(chunk) < frames.MAX_PAYLOAD):
            raise MemoryError
        write(job, kind, chunk)

    monkeypatch.setattr(jobs.Job, "output", fail)

    got = bench.gets()

    assert error_of(got) == "MemoryError: "
    assert got[-1] == (frames.RESULT, 3, b'{"size":600000}'), "An end comes after its own data."


def test_error_message_longer_than_a_frame_arrives_completely(bench: Bench) -> None:
    path = "x" * 100_000
    bench.sends(frames.READ, 2, {"path": path})

    first, last = bench.gets()

    assert (first[:2], last[:2]) == ((frames.MORE, 2), (frames.ERROR, 2))
    assert json.loads(first[2] + last[2]) == {"message": f"File name too long '{path}'"}


def test_short_writes_lose_no_bytes_of_a_file_or_of_stdin(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    process = start(bench, stdin="more")
    monkeypatch.setattr("os.write", lambda fd, data: write(fd, bytes(data[:7])))
    asked = {"path": str(tmp_path / "file"), "mode": 0o640, "has_more": False}
    bench.sends(frames.WRITE, 3, frames.to_json(asked) + b"\nlonger than seven\nbytes")
    bench.sends(frames.DATA, 2, b"longer than seven")

    assert result_of(bench.gets()) == {}
    assert (tmp_path / "file").read_bytes() == b"longer than seven\nbytes"
    assert process.reads() == b"longer than seven"
    process.ends()


def test_agent_kills_the_earlier_command_after_the_host_reconnected(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(bench)
    process.says(b"before")
    asked = {"path": str(tmp_path / "last"), "mode": 0o640, "has_more": False}
    bench.sends(frames.WRITE, 3, frames.to_json(asked) + b"\nx")
    bench.host.sendall(frames.encode(frames.RUN, 9, bytes(100))[:50])
    bench.disconnects()
    assert (tmp_path / "last").read_bytes() == b"x"
    process.says(b"while nobody listens")
    for _ in range(2):
        passes(bench, monkeypatch, 1)
    bench.reconnects()
    bench.greets("session-2")
    passes(bench, monkeypatch, 1)

    got = bench.gets()

    assert [(kind, request) for kind, request, _ in got] == [(frames.RESULT, 1)]
    assert process.signals == [signal.SIGKILL]
    process.ends(-9)
    bench.turns()


def test_invalid_stream_is_refused_until_the_next_sync_mark(bench: Bench) -> None:
    bench.host.sendall(b"GET / HTTP/1.1\r\n")
    assert error_of(bench.gets()) == "A frame has the unknown kind 0x47."

    bench.sends(frames.PING, 5)
    assert bench.gets() == []
    bench.greets()
    bench.sends(frames.PING, 6)
    assert (frames.RESULT, 6, b"{}") in bench.gets()


def test_malformed_request_is_refused(bench: Bench) -> None:
    for kind, payload in (
        (frames.RUN, b"{}\n"),
        (frames.RUN, b"not JSON"),
        (frames.RUN, b'{"argv": [], "limit_s": 1, "stdin": "none"}\n'),
        (frames.READ, b"[]"),
        (frames.READ, b'{"path": "a"} {"path": "b"}'),
        (frames.SETTLE, b"{}"),
        (frames.HELLO, b"\xff"),
        (frames.WRITE, b"{}\n"),
    ):
        bench.sends(kind, 4, payload)

        assert error_of(bench.gets()), payload
        bench.sends(frames.PING, 5)
        assert bench.gets() == [(frames.RESULT, 5, b"{}")]


def test_unknown_requests_and_answers_are_ignored(bench: Bench) -> None:
    for kind in (frames.DATA, frames.DATA_END, frames.CREDIT, frames.CANCEL, frames.RESULT):
        bench.sends(kind, 77)

    assert bench.gets() == []


def test_request_in_several_parts_over_the_size_limit_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = bytes(frames.MAX_PAYLOAD)
    monkeypatch.setattr(frames, "MAX_MESSAGE", 4 * len(part))
    bench.host.setblocking(True)
    for _ in range(4):
        bench.sends(frames.MORE, 4, part)
        bench.turns(3)
    assert bench.gets() == []

    bench.sends(frames.MORE, 4, part)
    bench.turns(3)

    assert error_of(bench.gets()) == (
        "ProtocolError: A request has more than 262144 bytes, not counting its streams."
    )


@pytest.mark.parametrize("is_new_client", [False, True])
def test_request_parts_are_joined_but_not_with_parts_of_an_earlier_client(
    bench: Bench, *, is_new_client: bool
) -> None:
    text = frames.to_json(RUN) + b"\n"
    if is_new_client:
        bench.sends(frames.MORE, 2, b"of before")
        bench.greets("session-2")
    for part in (text[:5], text[5:9]):
        bench.sends(frames.MORE, 2, part)
    bench.sends(frames.RUN, 2, text[9:])
    bench.turns()

    (process,) = bench.processes.started
    assert (process.argv, process.env, process.stdin) == (RUN["argv"], RUN["env"], None)
    process.ends()


# Files


def test_file_larger_than_a_frame_is_read_completely(bench: Bench, tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    (tmp_path / "file").write_bytes(content)
    bench.sends(frames.READ, 2, {"path": str(tmp_path / "file")})

    got = bench.gets()

    assert b"".join(payload for kind, _, payload in got if kind == frames.DATA) == content
    assert result_of(got) == {"size": len(content)}


def test_file_content_beyond_the_output_window_is_sent_after_a_credit_frame(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(3 << 20))
    bench.sends(frames.READ, 2, {"path": str(tmp_path / "file")})
    first = sum(len(payload) for _, _, payload in bench.gets())
    for _ in range(2):
        bench.sends(frames.CREDIT, 2, (1 << 20).to_bytes(4, "big"))

    rest = bench.gets()

    assert first == frames.OUTPUT_WINDOW
    assert first + sum(len(p) for kind, _, p in rest if kind == frames.DATA) == 3 << 20
    assert bench.gets() == []
    bench.sends(frames.CREDIT, 2, (1).to_bytes(4, "big"))
    assert result_of(bench.gets()) == {"size": 3 << 20}


def test_reading_a_file_that_is_not_regular_is_an_error_but_a_missing_file_is_not(
    bench: Bench, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        bench.sends(frames.READ, 2, {"path": str(path)})
        assert error_of(bench.gets()).endswith("is not a regular file")
    bench.sends(frames.READ, 2, {"path": str(tmp_path / "file")})
    assert result_of(bench.gets()) == {"size": None}


def test_bytes_of_requested_ranges_are_returned_in_the_order_of_the_request(
    bench: Bench, tmp_path: Path
) -> None:
    content = bytes(range(256)) * 4096
    (tmp_path / "disk").write_bytes(content)
    ranges = [(1000, 3), (0, 300_000), (7, 1), *((at, 16) for at in range(0, 20_000, 32))]
    asked: dict[str, object] = {"path": str(tmp_path / "disk"), "ranges": ranges}
    bench.sends(frames.READ_RANGES, 2, asked)

    got = bench.gets()

    wanted = b"".join(content[at : at + length] for at, length in ranges)
    assert b"".join(payload for kind, _, payload in got if kind == frames.DATA) == wanted
    assert result_of(got) == {"size": len(wanted)}


def test_range_of_a_missing_file_or_beyond_the_end_of_a_file_is_an_error(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "disk").write_bytes(bytes(10))
    for ranges in ([[0, 11]], [[20, 1]], [[0, 4], [9, 2]]):
        asked: dict[str, object] = {"path": str(tmp_path / "disk"), "ranges": ranges}
        bench.sends(frames.READ_RANGES, 2, asked)
        assert "ends before byte" in error_of(bench.gets())

    path = str(tmp_path / "no")
    bench.sends(frames.READ_RANGES, 2, {"path": path, "ranges": [[0, 1]]})
    assert error_of(bench.gets()) == f"No such file or directory '{path}'"


@pytest.fixture
def umask() -> Iterator[None]:
    """Set the usual umask of services, 022, which removes write access of group and others."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_written_file_appears_only_when_it_is_complete(bench: Bench, tmp_path: Path) -> None:
    """The file has the requested mode, whatever the umask and the mode of the old file."""
    for number, (mode, is_there) in enumerate(itertools.product((0o4666, 0), (False, True))):
        path = tmp_path / str(number) / "b" / "file"
        if is_there:
            path.parent.mkdir(parents=True)
            path.write_bytes(b"a long text of before")
            path.chmod(0o604)
        asked = {"path": str(path), "mode": mode, "has_more": True}
        bench.sends(frames.WRITE, 2, frames.to_json(asked) + b"\none ")
        bench.sends(frames.DATA, 2, b"two")
        assert bench.gets() == []
        assert path.exists() == is_there
        bench.sends(frames.DATA_END, 2)

        assert result_of(bench.gets()) == {}
        assert path.stat().st_mode & 0o7777 == mode
        path.chmod(0o600)
        assert path.read_bytes() == b"one two"
        assert list(path.parent.iterdir()) == [path]


def test_file_name_of_254_bytes_is_accepted(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)
    asked = {"path": str(path), "mode": 0o640, "has_more": False}
    bench.sends(frames.WRITE, 2, frames.to_json(asked) + b"\nx")

    assert result_of(bench.gets()) == {}
    assert path.read_bytes() == b"x"
    assert list(tmp_path.iterdir()) == [path]


def test_cancelled_write_leaves_no_file_and_a_leftover_file_is_replaced(
    bench: Bench, tmp_path: Path
) -> None:
    """A killed agent leaves a partial file, and the next agent may have the same process id."""
    asked = {"path": str(tmp_path / "file"), "mode": 0o640, "has_more": True}
    bench.sends(frames.WRITE, 2, frames.to_json(asked) + b"\nhalf")
    bench.turns()
    (part,) = tmp_path.iterdir()
    bench.sends(frames.CANCEL, 2)

    assert result_of(bench.gets()) == {"cancelled": True}
    assert list(tmp_path.iterdir()) == []
    part.write_bytes(b"a longer text of before")
    bench.sends(frames.WRITE, 2, frames.to_json({**asked, "has_more": False}) + b"\nx")
    assert result_of(bench.gets()) == {}
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"x")]


def test_host_gets_credit_for_bytes_written_to_a_file(bench: Bench, tmp_path: Path) -> None:
    asked = {"path": str(tmp_path / "file"), "mode": 0o640, "has_more": True}
    bench.sends(frames.WRITE, 2, frames.to_json(asked) + b"\n")
    for _ in range(5):
        bench.sends(frames.DATA, 2, bytes(60_000))
        bench.turns(3)

    assert 300_000 - 65_536 < credit_of(bench.gets()) <= 300_000


def test_simultaneous_writes_of_one_file_do_not_mix_their_contents(
    bench: Bench, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    asked = {"path": str(path), "mode": 0o640, "has_more": True}
    for request in (2, 3):
        bench.sends(frames.WRITE, request, frames.to_json(asked) + b"\n")
    for request, part in ((2, b"one "), (3, b"two "), (2, b"one"), (3, b"two")):
        bench.sends(frames.DATA, request, part)
    for request, content in ((2, b"one one"), (3, b"two two")):
        bench.sends(frames.DATA_END, request)
        assert bench.gets() == [(frames.RESULT, request, b"{}")]
        assert path.read_bytes() == content

    assert list(tmp_path.iterdir()) == [path]


def test_file_request_that_has_ended_leaves_no_descriptor_open(
    bench: Bench, tmp_path: Path
) -> None:
    size = 2 * frames.OUTPUT_WINDOW
    fields = {"mode": 0o640, "has_more": True, "ranges": [[0, size]]}
    kinds = (frames.READ, frames.READ_RANGES, frames.WRITE, frames.WAIT_FILE)
    before = open_files()
    for kind, is_cancelled in itertools.product(kinds, (True, False)):
        (tmp_path / "file").write_bytes(bytes(size))
        name = "later" if kind == frames.WAIT_FILE else "file"
        asked = frames.to_json({"path": str(tmp_path / name), **fields})
        bench.sends(kind, 2, asked + (b"\n" if kind == frames.WRITE else b""))
        bench.gets()
        assert open_files() > before

        if is_cancelled:
            bench.sends(frames.CANCEL, 2)
        elif kind == frames.WAIT_FILE:
            (tmp_path / name).touch()
        elif kind == frames.WRITE:
            bench.sends(frames.DATA_END, 2)
        else:
            bench.sends(frames.CREDIT, 2, size.to_bytes(4, "big"))

        answers = [frame[:2] for frame in bench.gets() if frame[0] != frames.DATA]
        assert answers == [(frames.RESULT, 2)], (kind, is_cancelled)
        assert open_files() == before, (kind, is_cancelled)


def test_folder_cannot_be_overwritten_by_a_file(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    asked = {"path": str(tmp_path / "folder"), "mode": 0o640, "has_more": False}
    bench.sends(frames.WRITE, 2, frames.to_json(asked) + b"\nx")

    assert "Is a directory" in error_of(bench.gets())
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_wait_for_a_file_may_begin_before_the_folders_of_the_file_exist(
    bench: Bench, tmp_path: Path
) -> None:
    path = tmp_path / "a" / "b" / "file"
    bench.sends(frames.WAIT_FILE, 2, {"path": str(path)})
    assert bench.gets() == []
    path.parent.mkdir(parents=True)
    assert bench.gets() == []
    path.write_text("")

    assert result_of(bench.gets()) == {}
    assert len(bench.server.loop._callbacks) == 1


def test_file_is_found_by_polling_if_inotify_is_unavailable(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "inotify_init1")

    monkeypatch.setattr(files, "Inotify", refuse)
    bench.sends(frames.WAIT_FILE, 2, {"path": str(tmp_path / "file")})
    for _ in range(2):
        bench.turns(2)
        passes(bench, monkeypatch, 0.5)
    (tmp_path / "file").touch()
    passes(bench, monkeypatch, 0.5)

    assert result_of(bench.gets()) == {}


def test_timer_cancelled_by_an_earlier_callback_of_the_same_round_is_not_called(
    bench: Bench,
) -> None:
    called: list[str] = []
    loop = bench.server.loop
    timers: list[int] = []
    loop.call_later(0, lambda: loop.cancel_timer(timers[0]))
    timers.append(loop.call_later(0, lambda: called.append("cancelled")))
    loop.call_later(0, lambda: called.append("next"))

    bench.turns(2)

    assert called == ["next"]


def test_callback_of_a_ready_descriptor_is_not_called_after_the_descriptor_is_removed(
    bench: Bench,
) -> None:
    called: list[int] = []
    pipes = [os.pipe() for _ in range(2)]
    loop = bench.server.loop
    for (ours, others), (other, _) in zip(pipes, reversed(pipes), strict=True):
        os.write(others, b"x")

        def read(_: int, ours: int = ours, other: int = other) -> None:
            called.append(os.read(ours, 1)[0])
            loop.remove(other)

        loop.add(ours, READABLE, read)
    bench.turns(3)

    assert called == [ord("x")]
    for ours, others in pipes:
        loop.remove(ours)
        os.close(ours)
        os.close(others)


def test_error_in_a_callback_is_reported_for_the_request_that_registered_the_callback() -> None:
    errors: list[tuple[int, str]] = []
    loop = Loop(lambda owner, error: errors.append((owner, str(error))))
    ours, others = os.pipe()
    os.write(others, b"x")

    def fail(text: str) -> None:
        raise ValueError(text)

    def event(_events: int) -> None:
        loop.remove(ours)
        loop.add(ours, READABLE, read)
        fail("event")

    def begin() -> None:
        loop.call_soon(lambda: fail("soon"))
        loop.call_later(0, lambda: fail("later"))
        loop.add(ours, READABLE, event)

    def read(_events: int) -> None:
        os.read(ours, 1)
        errors.append((loop.owner, "none"))

    loop.owner = 7
    loop.call_soon(begin)
    for _ in range(4):
        loop.run_once(0.0)
        assert loop.owner == NOBODY

    assert sorted(errors) == [(7, "event"), (7, "later"), (7, "none"), (7, "soon")]
    for fd in (ours, others):
        os.close(fd)


def test_callback_that_schedules_itself_again_does_not_prevent_other_callbacks(
    bench: Bench,
) -> None:
    called: list[str] = []
    loop = bench.server.loop

    def again() -> None:
        called.append("again")
        if len(called) < 9:
            loop.call_soon(again)

    loop.call_soon(again)
    loop.call_later(0, lambda: called.append("timer"))
    bench.turns(2)

    assert called == ["timer", "again", "again"]


def test_loop_waits_for_the_timer_that_is_due_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    loop = bench.server.loop
    for seconds in (60.0, 5.0, 30.0):
        loop.call_later(seconds, lambda: None)

    def wait(milliseconds: float) -> list[tuple[int, int]]:
        waits.append(milliseconds)
        return []

    monkeypatch.setattr(loop, "_poll", SimpleNamespace(poll=wait))
    loop.run_once()
    loop.run_once(2.0)

    assert waits == [pytest.approx(5000, rel=0.1), 2000]


def test_wait_for_a_file_continues_after_its_folder_is_removed_and_created_again(
    bench: Bench, tmp_path: Path
) -> None:
    for name in ("folder", "file in place of the folder"):
        folder = tmp_path / name
        folder.mkdir() if name == "folder" else folder.touch()
        bench.sends(frames.WAIT_FILE, 2, {"path": str(folder / "file")})
        bench.gets()
        folder.rmdir() if name == "folder" else folder.unlink()
        bench.gets()
        folder.mkdir()
        bench.gets()
        (folder / "file").write_text("")

        assert result_of(bench.gets()) == {}, name
    bench.sends(frames.WAIT_FILE, 2, {"path": str(tmp_path)})
    assert result_of(bench.gets()) == {}, "a file that exists is not waited for"
