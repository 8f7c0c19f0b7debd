"""Functions that write Markdown."""

from __future__ import annotations

import pytest

from harness.reference.markdown import anchor, prose, sentence, table


def test_vertical_bars_in_a_cell_are_escaped_and_line_breaks_become_spaces() -> None:
    text = table(["option", "what"], [["--a", "one|two\nlines"]])

    assert text.splitlines() == [
        "| option | what |",
        "| --- | --- |",
        "| --a | one\\|two lines |",
    ]


def test_names_and_options_in_prose_become_code_unless_they_are_code_already() -> None:
    text = """Take node_name, `x_y` or --dry-run of a/b_c.

    Such as:

        code_of_an_example --x
    """

    assert prose(text).splitlines() == [
        "Take `node_name`, `x_y` or `--dry-run` of a/b_c.",
        "",
        "Such as:",
        "",
        "    code_of_an_example --x",
    ]


@pytest.mark.parametrize("words", ["one word", "one word.", " one word"])
def test_text_becomes_a_sentence_with_a_capital_letter_and_one_full_stop(words: str) -> None:
    assert sentence(words) == "One word."


def test_anchor_has_one_hyphen_between_two_words() -> None:
    assert anchor("`a_b` - The (first) page, 2") == "a_b-the-first-page-2"
