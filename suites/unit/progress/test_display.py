"""How progress is shown on a terminal, and elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from harness.progress import ProgressEvent, Stage
from harness.progress.board import Board, Row
from harness.progress.display import Display, LiveRegion, PlainLines, render_rows

_EVENT = ProgressEvent(subject="node-1", stage=Stage.BUSY, message="waits [for x]", until=130.0)
_ROW = Row(
    worker="gw0",
    subject="node-1",
    event=_EVENT,
    since=100.0,
    begin=_EVENT,
    began=70.0,
    told=100.0,
    console="Started two",
)


def _plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def test_row_has_worker_and_machine_and_times_and_activity_and_console_line() -> None:
    (line,) = render_rows([_ROW], 112.0, 80)

    assert re.fullmatch(r"gw0 node-1 12 of 30 s waits \[for x\] +Started two *", _plain(line))


def test_rows_are_cleared_before_a_line_is_written_above_them() -> None:
    written: list[str] = []
    region = LiveRegion(written.append, lambda: (80, 24))

    region.draw([_ROW], 112.0)
    with region.writing():
        written.append("a test")
    with region.writing():
        written.append("another")

    drawn, *rest = written
    # Scroll by one line, save the position of the cursor, write the row, and restore the position.
    assert drawn.startswith("\x1bD\x1b[1A\x1b7\r\n")
    assert drawn.endswith("\x1b8")
    assert rest == ["\x1b[J", "a test", "another"]


def test_rows_disappear_when_all_activities_have_ended() -> None:
    written: list[str] = []
    region = LiveRegion(written.append, lambda: (80, 24))

    region.draw([_ROW], 112.0)
    region.draw([], 113.0)
    region.draw([], 114.0)

    assert written[1:] == ["\x1b[J"]


def test_row_has_no_colours_if_pytest_prints_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    assert "\x1b" in render_rows([_ROW], 112.0, 80)[0]
    assert "\x1b" not in render_rows([_ROW], 112.0, 80, has_colours=False)[0]


@pytest.mark.parametrize("columns", [0, 2, 30])
def test_row_fits_the_terminal(columns: int) -> None:
    (line, *rest) = render_rows([_ROW], 112.0, columns)

    assert len(_plain(line)) <= max(1, columns - 1)
    assert not rest


def test_display_shows_nothing_while_it_is_paused() -> None:
    written: list[str] = []
    display = Display(LiveRegion(written.append, lambda: (80, 24)), Board(), clock=lambda: 100.0)

    display.pause()
    display.pause()
    display(_EVENT)
    display.go_on()
    display.look()
    assert written == []

    display.go_on()
    assert "node-1" in written[0]

    display.pause()
    assert written[-1] == "\x1b[J"
    display.close()


def test_progress_lines_are_delayed_while_the_display_is_paused() -> None:
    written: list[str] = []
    display = Display(PlainLines(written.append), Board(), clock=lambda: 100.0)

    display.pause()
    display(ProgressEvent(subject="noble", stage=Stage.BUILD, message="installs"))
    display.look()
    assert written == []

    display.go_on()
    display.close()
    (line,) = written
    assert line.endswith("[noble] build: installs\n")


def test_delayed_progress_lines_are_printed_when_a_paused_display_closes() -> None:
    written: list[str] = []
    display = Display(PlainLines(written.append), Board(), clock=lambda: 100.0)

    display.pause()
    display(ProgressEvent(subject="noble", stage=Stage.BUILD, message="installs"))
    display.close()

    assert "[noble] build: installs" in written[0]


def test_rows_of_an_ended_worker_are_removed() -> None:
    written: list[str] = []
    display = Display(LiveRegion(written.append, lambda: (80, 24)), Board(), clock=lambda: 100.0)

    for name in ("node-1", "node-2"):
        display(replace(_EVENT, subject=name), "gw10")
    display.forget("gw1")
    display.look()
    assert all(name in written[-1] for name in ("node-1", "node-2"))

    display.forget("gw10")
    display.look()
    assert written[-1] == "\x1b[J"
    display.close()


def test_event_that_arrives_after_the_end_of_its_worker_leaves_no_row() -> None:
    written: list[str] = []
    display = Display(LiveRegion(written.append, lambda: (80, 24)), Board(), clock=lambda: 100.0)

    display.forget("gw0")
    display(_EVENT, "gw0")
    display.look()
    display.close()

    assert "node-1" not in "".join(written)


def test_rows_whose_drawing_was_interrupted_are_removed() -> None:
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        if len(written) == 1:
            raise KeyboardInterrupt

    display = Display(LiveRegion(write, lambda: (80, 24)), Board(), clock=lambda: 100.0)
    with pytest.raises(KeyboardInterrupt):
        display(_EVENT, "gw0")
    display.close()

    assert written[1:] == ["\x1b[J"]


def test_rows_whose_removal_was_interrupted_are_removed() -> None:
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        if len(written) == 2:
            raise KeyboardInterrupt

    region = LiveRegion(write, lambda: (80, 24))
    region.draw([_ROW], 112.0)
    with pytest.raises(KeyboardInterrupt):
        region.draw([], 113.0)
    region.clear()

    assert written[2:] == ["\x1b[J"]


def test_rows_occupy_at_most_half_of_the_terminal() -> None:
    written: list[str] = []
    region = LiveRegion(written.append, lambda: (80, 6))

    region.draw([replace(_ROW, subject=f"node-{number}") for number in range(9)], 112.0)

    assert re.findall(r"node-\d", written[0]) == ["node-0", "node-1", "node-2"]


def test_line_after_unfinished_output_begins_on_a_new_line() -> None:
    written: list[str] = []
    PlainLines(written.append, lambda: True).print_lines(["one", "two"])

    assert written == ["\none\ntwo\n"]


def test_display_shows_due_activities_and_shows_nothing_after_its_end() -> None:
    now = [100.0]
    written: list[str] = []
    display = Display(PlainLines(written.append), Board(), clock=lambda: now[0])

    display(_EVENT, "gw0")
    now[0] = 107.0
    display.look()
    display.close()
    display(replace(_EVENT, stage=Stage.BUILD), "gw0")
    now[0] = 200.0
    display.look()

    (line,) = written
    assert "gw0 [node-1] busy: waits [for x], until " in line


def test_text_of_a_guest_cannot_control_the_terminal() -> None:
    """Examples are the name of a unit and the answer of a registry."""
    written: list[str] = []
    display = Display(PlainLines(written.append), Board(), clock=lambda: 0.0)
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\udce9"

    for stage in (Stage.FETCH, Stage.PLAN):
        display(ProgressEvent(subject=evil, stage=stage, message=f"{evil}\n{'y' * 100_000}"))
    display.close()

    assert all("\\x1b]0;owned\\x07" in said for said in written)
    assert "".join(written).replace("\n", "").isprintable()
    assert max(map(len, written)) < 10_000


_PLAN = ProgressEvent(subject="run", stage=Stage.PLAN, message="first use: 1 thing\n  image a")


def test_plan_is_printed_on_separate_lines_without_a_time() -> None:
    written: list[str] = []
    display = Display(PlainLines(written.append), Board(), clock=lambda: 100.0)

    display(_PLAN, "gw0")
    display.close()

    assert written == ["first use: 1 thing\n  image a\n"]


def test_plan_is_printed_above_the_rows_on_a_terminal() -> None:
    written: list[str] = []
    display = Display(LiveRegion(written.append, lambda: (80, 24)), Board(), clock=lambda: 100.0)

    display(_EVENT, "gw0")
    display(_PLAN, "gw0")
    display.close()

    assert written[1:3] == ["\x1b[J", "\r\nfirst use: 1 thing\r\n  image a\r\n"]
