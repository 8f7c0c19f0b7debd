"""Tests of the film in the README: the recording, and the commands that the film shows."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING

from docs.generator import film
from suites.docs.pages import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path


_MOST_BYTES = 300 * 1024
_LONGEST_MS = 60_000


def _printed(cast: str) -> list[tuple[float, str]]:
    return [(seconds, text) for seconds, _, text in map(json.loads, cast.splitlines()[1:])]


def test_recorded_film_has_the_commands_and_their_output(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("of a file\n")

    cast = film.record(
        tmp_path, [["# a note", "cat *.txt"], ["exit_code() { return 3; }", "exit_code"]]
    )

    header = json.loads(cast.splitlines()[0])
    assert (header["version"], header["width"]) == (2, film.COLUMNS)
    assert "".join(text for _, text in _printed(cast)) == (
        "\x1b[H\x1b[2J$ # a note\r\n$ cat *.txt\r\nof a file\r\n$ "
        "\x1b[H\x1b[2J$ exit_code() { return 3; }\r\n$ exit_code\r\n$ "
    )


def test_film_cuts_long_pauses_but_shows_text_long_enough_to_read() -> None:
    now = 100.0
    recording = film.Recording(lambda: now)

    recording.write("$ ")
    now += 0.25
    recording.write("a")
    now += 90.0
    recording.write("b")
    recording.hold(film.READ_S)
    recording.write("c")

    cut = 0.25 + film.PAUSE_S
    assert _printed(recording.text()) == [
        (0.0, "$ "),
        (0.25, "a"),
        (round(cut, 3), "b"),
        (round(cut + film.READ_S, 3), "c"),
    ]


def test_committed_film_is_short_and_shows_the_current_commands() -> None:
    svg = (REPOSITORY / "docs/pictures/film.svg").read_text()

    shown = unescape(svg)
    lines = [line for line in film.TEST.splitlines() if line]
    notes = [note for note, _ in film.SCENES]
    assert [line for line in [*lines, *notes] if line not in shown] == [], (
        "Run './dev film' to record the film again."
    )
    assert len(svg.encode()) < _MOST_BYTES
    found = re.search(r"--animation-duration: (\d+)ms", svg)
    assert found is not None
    assert int(found[1]) < _LONGEST_MS
