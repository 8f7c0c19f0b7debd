"""Markdown that programs write."""

from __future__ import annotations

from harness.reference.markdown import table


def test_cell_keeps_its_vertical_bars_and_stays_one_line() -> None:
    text = table(["option", "what"], [["--a", "one|two\nlines"]])

    assert text.splitlines() == [
        "| option | what |",
        "| --- | --- |",
        "| --a | one\\|two lines |",
    ]
