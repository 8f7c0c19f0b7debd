"""The lines and rows that show what machines and images do."""

from __future__ import annotations

import itertools
import re

import pytest

from harness.progress import ProgressEvent, Stage
from harness.progress.board import Board

_CONSOLE = "waits for 60 s; its console has printed 1 lines since, the last of them:\n  | Begun\n  | Started"


def _event(
    stage: Stage, message: str, subject: str = "node-1", until: float | None = None
) -> ProgressEvent:
    return ProgressEvent(subject=subject, stage=stage, message=message, until=until)


def _without_times(lines: list[str]) -> list[str]:
    return [re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", line) for line in lines]


def test_activity_of_a_cache_is_printed_immediately() -> None:
    lines = Board().take(_event(Stage.FETCH, "50 % of 300.0 MiB", "debian-12"), "gw1", 100.0)

    assert _without_times(lines) == ["HH:MM:SS gw1 [debian-12] fetch: 50 % of 300.0 MiB"]


def test_no_line_is_printed_for_a_machine_that_starts_quickly() -> None:
    board = Board()

    assert board.take(_event(Stage.BUSY, "starts"), "", 100.0) == []
    assert board.due(102.0) == []
    assert board.take(_event(Stage.RUNS, "runs for a test"), "", 103.0) == []
    assert board.due(120.0) == []


def test_short_wait_prints_one_line_with_its_limit_and_one_line_at_its_end() -> None:
    board = Board()
    board.take(_event(Stage.BUSY, "waits for cloud-init", until=400.0), "gw0", 100.0)

    begun, again = board.due(106.0), board.due(107.0)
    ended = board.take(_event(Stage.RUNS, "runs for a test"), "gw0", 142.0)

    assert _without_times(begun) == [
        "HH:MM:SS gw0 [node-1] busy: waits for cloud-init, until HH:MM:SS at most"
    ]
    assert again == []
    assert _without_times(ended) == [
        "HH:MM:SS gw0 [node-1] busy: waits for cloud-init: done after 42 s"
    ]


def test_wait_beyond_its_limit_is_shown_with_the_reason() -> None:
    board = Board()
    board.take(_event(Stage.BUSY, "waits for cloud-init", until=120.0), "", 100.0)

    assert _without_times([*board.due(106.0), *board.due(150.0)]) == [
        "HH:MM:SS [node-1] busy: waits for cloud-init, until HH:MM:SS at most",
        (
            "HH:MM:SS [node-1] busy: waits for cloud-init, for 50 s, past HH:MM:SS, "
            "since the host keeps the machine waiting"
        ),
    ]


def test_machines_of_the_same_name_on_two_workers_have_separate_rows() -> None:
    board = Board()
    board.take(_event(Stage.BUSY, "starts"), "gw0", 100.0)
    board.take(_event(Stage.BUSY, "starts"), "gw1", 101.0)
    board.take(_event(Stage.ENDED, "has ended"), "gw0", 102.0)

    assert [(row.worker, row.subject) for row in board.rows(103.0)] == [("gw1", "node-1")]


def test_console_output_during_a_long_wait_is_shown_in_a_line_and_in_the_row() -> None:
    board = Board()
    board.take(_event(Stage.BUSY, "waits"), "", 100.0)

    lines = board.take(_event(Stage.CONSOLE, _CONSOLE), "", 160.0)

    assert lines[0].endswith("\n  | Begun\n  | Started")
    (row,) = board.rows(161.0)
    assert (row.event.message, row.console) == ("waits", "Started")


def test_interactive_machine_is_shown_only_while_it_waits() -> None:
    board = Board(tells_running=False)
    board.take(_event(Stage.RUNS, "runs for harness shell"), "", 100.0)

    assert board.take(_event(Stage.CONSOLE, _CONSOLE), "", 160.0) == []
    assert board.due(500.0) == []
    board.take(_event(Stage.BUSY, "waits"), "", 501.0)
    assert len(board.take(_event(Stage.CONSOLE, _CONSOLE), "", 561.0)) == 1


def test_row_of_a_cache_is_removed_if_the_cache_is_ready_or_stops_reporting() -> None:
    board = Board()
    board.take(_event(Stage.BUILD, "installing", "c"), "", 100.0)
    board.take(_event(Stage.CHECK, "looking", "a"), "", 100.0)
    board.take(_event(Stage.CHECK, "looking", "b"), "", 100.5)
    board.take(_event(Stage.READY, "it takes 3 MiB", "c"), "", 101.0)
    board.take(_event(Stage.FETCH, "10 %", "a"), "", 101.0)

    assert [row.subject for row in board.rows(102.0)] == ["b", "a"], "The oldest comes first."
    assert [row.subject for row in board.rows(500.0)] == ["a"]


@pytest.mark.parametrize("stage", [Stage.BUILD, Stage.FETCH])
def test_line_is_printed_every_half_minute_while_an_artifact_is_made(stage: Stage) -> None:
    board = Board()
    board.take(_event(stage, "installing its packages", "debian-12"), "gw0", 100.0)

    told = {now: board.due(float(now)) for now in range(101, 700)}
    ended = board.take(_event(Stage.ENDED, "it was not made", "debian-12"), "gw0", 700.0)

    times = [now for now, lines in told.items() if lines]
    assert all(later - now <= 30 for now, later in itertools.pairwise([100, *times, 700]))
    assert _without_times(told[times[1]]) == [
        f"HH:MM:SS gw0 [debian-12] {stage.value}: installing its packages, for {times[1] - 100} s"
    ]
    assert ended == []
    assert board.due(800.0) == []


def test_line_is_printed_every_half_minute_of_a_wait_unless_the_console_has_output() -> None:
    board = Board()
    board.take(_event(Stage.BUSY, "waits for cloud-init", until=900.0), "", 100.0)
    begun = board.due(105.0)
    again = board.due(130.0)
    board.take(_event(Stage.CONSOLE, _CONSOLE), "", 150.0)
    beside = board.due(165.0)

    assert (len(begun), beside) == (1, [])
    assert _without_times(again) == [
        "HH:MM:SS [node-1] busy: waits for cloud-init, for 30 s, until HH:MM:SS at most"
    ]


def test_line_about_a_machine_under_test_is_printed_only_if_no_other_line_is_due() -> None:
    board = Board()
    board.take(_event(Stage.RUNS, "runs for test_a"), "gw0", 100.0)
    board.take(_event(Stage.BUILD, "installing", "debian-12"), "gw1", 110.0)

    beside = board.due(130.0)
    board.take(_event(Stage.READY, "it takes 3 MiB", "debian-12"), "gw1", 131.0)
    for stage, now in ((Stage.BUSY, 140.0), (Stage.ENDED, 141.0)):
        assert board.take(_event(stage, "too quick for a line", "node-2"), "gw1", now) == []
    alone = board.due(157.0)

    assert beside == []
    assert _without_times(alone) == ["HH:MM:SS gw0 [node-1] runs: runs for test_a, for 57 s"]


def test_line_about_a_machine_under_test_is_not_printed_soon_after_another_line() -> None:
    board = Board()
    board.take(_event(Stage.BUILD, "installing", "debian-12"), "gw1", 110.0)
    board.take(_event(Stage.RUNS, "runs for test_a"), "gw0", 112.0)

    assert [len(board.due(now)) for now in (135.0, 138.0)] == [1, 0]


def test_line_is_printed_for_each_long_part_of_a_wait_and_for_the_end_of_the_wait() -> None:
    board = Board()
    board.take(_event(Stage.BUSY, "waits", until=400.0), "", 100.0)
    begun = board.due(106.0)

    first = board.take(_event(Stage.BUSY, "waits: part 1", until=400.0), "", 110.0)
    second = board.take(_event(Stage.BUSY, "waits: part 2", until=400.0), "", 111.0)
    quick, long, longer = (board.due(now) for now in (112.0, 120.0, 146.0))
    ended = board.take(_event(Stage.BUSY, "waits for GPUs", until=500.0), "", 147.0)

    assert (len(begun), first, second, quick) == (1, [], [], [])
    assert "waits: part 2, until " in long[0]
    assert "waits: part 2, for 46 s, until " in longer[0]
    assert board.take(_event(Stage.ENDED, "has ended"), "", 148.0) == []
    assert _without_times(ended) == ["HH:MM:SS [node-1] busy: waits: done after 47 s"]
