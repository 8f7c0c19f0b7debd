"""Commands in a terminal: the terminals are real, the processes are fake."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING

from harness.agent import commands, frames, terminal
from suites.unit.agent.fakes import Bench, Started, error_of, passes, result_of, start

if TYPE_CHECKING:
    import pytest

_SIZE: dict[str, object] = {"rows": 24, "columns": 80}


def start_in_terminal(bench: Bench, request: int = 2, **changes: object) -> Started:
    asked = {"stdin": "more", "terminal": _SIZE, **changes}
    return start(bench, request, **asked)


def output_of(got: list[tuple[int, int, bytes]]) -> bytes:
    return b"".join(payload for kind, _, payload in got if kind == frames.STDOUT)


def size_of(started: Started) -> tuple[int, int]:
    size = os.get_terminal_size(started.stdout)
    return size.lines, size.columns


def test_terminal_size_follows_resize_requests_and_is_clamped_to_16_bits(bench: Bench) -> None:
    started = start_in_terminal(bench)
    assert size_of(started) == (24, 80)

    for rows, columns, size in ((50, 132, (50, 132)), (70_000, -1, (65_535, 0))):
        bench.sends(frames.RESIZE, 2, {"rows": rows, "columns": columns})
        bench.turns()
        assert size_of(started) == size
    started.ends()
    started = start_in_terminal(bench, request=3, terminal={"rows": 70_000, "columns": -1})
    assert size_of(started) == (65_535, 0)
    started.ends()


def test_terminal_request_without_valid_rows_and_columns_is_refused(bench: Bench) -> None:
    asked: dict[str, object] = {"argv": ["a"], "limit_s": 1, "stdin": "more"}
    for size in ({}, {"rows": 1}, {"rows": "24", "columns": 80}, True):
        bench.sends(frames.RUN, 2, {**asked, "terminal": size})

        assert "'rows' and 'columns'" in error_of(bench.gets())
    assert bench.processes.started == []


def test_resize_of_a_command_without_a_terminal_is_ignored(bench: Bench) -> None:
    started = start(bench)
    bench.sends(frames.RESIZE, 2, _SIZE)
    bench.sends(frames.RESIZE, 99, _SIZE)
    started.ends(4)

    assert result_of(bench.gets()) == {"exit_code": 4, "timed_out": False}


def test_resize_request_is_ignored_after_the_command_has_closed_its_terminal(bench: Bench) -> None:
    started = start_in_terminal(bench)
    started.closes_output()
    bench.turns()
    bench.sends(frames.RESIZE, 2, _SIZE)
    bench.turns()
    started.exits(5)

    assert result_of(bench.gets()) == {"exit_code": 5, "timed_out": False}


def test_terminal_request_passes_its_fallback_program_to_the_new_process(bench: Bench) -> None:
    started = start_in_terminal(bench, argv=["bash"], fallback=["sh", "-i"])

    assert (started.argv, started.fallback) == (["bash"], ["sh", "-i"])
    started.ends()
    assert start_in_terminal(bench, request=3, fallback=[]).fallback is None
    bench.processes.started[-1].ends()


def test_error_for_a_missing_program_in_a_terminal_ends_with_crlf(
    bench: Bench,
) -> None:
    bench.processes.refusal = FileNotFoundError(2, "No such file or directory")
    bench.sends(frames.RUN, 2, {"argv": ["a"], "limit_s": 1, "stdin": "more", "terminal": _SIZE})

    got = bench.gets()

    assert [payload for kind, _, payload in got if kind == frames.STDERR] == [
        b"a: No such file or directory\r\n"
    ]
    assert result_of(got)["exit_code"] == 127


def test_result_of_a_command_in_a_terminal_follows_the_last_output_of_its_process(
    bench: Bench,
) -> None:
    """A background process of the shell still has the terminal open."""
    started = start_in_terminal(bench)
    started.says(b"last words\n")
    started.exits(7)

    got = bench.gets()

    assert output_of(got) == b"last words\r\n"
    assert result_of(got) == {"exit_code": 7, "timed_out": False}
    assert started.is_reaped
    started.closes_output()


def test_last_output_of_an_ended_process_arrives_even_after_64_kib_of_output(bench: Bench) -> None:
    started = start_in_terminal(bench)
    said = 0
    while said <= frames.MAX_PAYLOAD:
        started.says(b"x" * 999 + b"\n")
        said += len(output_of(bench.gets()))
    # The agent reads some 4000 bytes at once.
    for _ in range(9):
        started.says(b"y" * 999 + b"\n")
    started.says(b"last words\n")
    started.exits(0)

    assert output_of(bench.gets()).endswith(b"y\r\nlast words\r\n")
    started.closes_output()


def test_endless_output_of_a_leftover_process_does_not_prolong_the_command(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = start_in_terminal(bench)
    bench.turns()
    started.exits(0)
    monkeypatch.setattr(terminal, "os", SimpleNamespace(read=lambda _fd, size: b"y" * size))

    assert result_of(bench.gets()) == {"exit_code": 0, "timed_out": False}
    started.closes_output()


def test_terminal_output_beyond_the_output_window_is_sent_after_a_credit_frame(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "OUTPUT_WINDOW", 10)
    started = start_in_terminal(bench)
    started.says(b"ten bytes\n")
    assert output_of(bench.gets()) == b"ten bytes\r\n"
    started.says(b"more\n")
    started.exits(0)

    assert bench.gets() == []
    bench.sends(frames.CREDIT, 2, (100).to_bytes(4, "big"))
    got = bench.gets()

    assert output_of(got) == b"more\r\n"
    assert result_of(got) == {"exit_code": 0, "timed_out": False}
    started.closes_output()


def test_terminal_command_result_is_sent_only_after_a_credit_frame_if_the_window_is_full(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "OUTPUT_WINDOW", 10)
    started = start_in_terminal(bench)
    started.says(b"ten bytes\n")
    bench.gets()
    started.exits(0)
    assert bench.gets() == []

    bench.sends(frames.CREDIT, 2, (100).to_bytes(4, "big"))

    assert result_of(bench.gets()) == {"exit_code": 0, "timed_out": False}
    started.closes_output()


def test_end_of_stdin_is_typed_into_the_terminal_as_ctrl_d(
    bench: Bench,
) -> None:
    for request, form in ((2, "more"), (3, "all")):
        started = start_in_terminal(bench, request=request, stdin=form)
        if form == "more":
            bench.sends(frames.DATA, request, b"typed\n")
            bench.turns()
            assert started.reads() == b"typed\n"
            assert output_of(bench.gets()) == b"typed\r\n"
            bench.sends(frames.DATA_END, request)
        bench.turns()

        assert started.reads() == b""
        started.says(b"on\n")
        started.exits(0)
        got = bench.gets()
        assert output_of(got).endswith(b"on\r\n")
        assert result_of(got) == {"exit_code": 0, "timed_out": False}
        started.closes_output()


def test_cancel_closes_the_terminal_before_sigkill_is_sent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel then sends SIGHUP, at which a shell ends its jobs.

    Only remaining processes are killed.
    """
    started = start_in_terminal(bench)
    bench.sends(frames.CANCEL, 2)

    assert result_of(bench.gets()) == {"cancelled": True}
    assert started.signals == []
    assert os.read(started.stdout, 1) == b""
    passes(bench, monkeypatch, commands.KILL_AFTER_S)
    assert started.signals == [signal.SIGKILL]
    started.ends(-9)
    assert bench.gets() == []
    assert started.is_reaped


def test_cancelled_process_that_ends_when_its_terminal_closes_is_not_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have given the process id of the ended process to another process."""
    started = start_in_terminal(bench)
    bench.sends(frames.CANCEL, 2)
    bench.turns()
    started.ends(-1)
    bench.turns()

    passes(bench, monkeypatch, commands.KILL_AFTER_S)

    assert (started.signals, started.is_reaped) == ([], True)


def test_process_in_a_terminal_gets_sigterm_and_sighup_at_its_time_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interactive shell ignores SIGTERM, so the terminal is closed too."""
    started = start_in_terminal(bench)
    passes(bench, monkeypatch, 60.0)

    assert started.signals == [signal.SIGTERM, signal.SIGHUP]
    started.ends(-1)
    assert result_of(bench.gets()) == {"exit_code": 124, "timed_out": True}
