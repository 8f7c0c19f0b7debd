"""Text of guests, files and servers is escaped and shortened before it is shown."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.visible_text import VisibleStream, shortened, visible, visible_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("d\u00e9bian 12 \u2603 \u6f22", "d\u00e9bian 12 \u2603 \u6f22"),
        ("one\n\ttwo\r\nthree", "one\n\ttwo\nthree"),
        ("\x1b]0;owned\x07\x1b[2J", r"\x1b]0;owned\x07\x1b[2J"),
        ("over\rwritten\x08\x7f", r"over\rwritten\x08\x7f"),
        ("\x85\x9b31m", r"\x85\x9b31m"),
        ("a\u202egnp.exe\u2028", r"a\u202egnp.exe\u2028"),
        ("caf\udce9 \ud800 \ufffe \0", r"caf\udce9 \ud800 \ufffe \x00"),
    ],
)
def test_control_characters_are_escaped_in_visible_text(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_visible_line_has_no_line_breaks() -> None:
    assert visible_line(" a\r\n\tb\x1b ") == r"a b\x1b"


@given(st.text(st.characters(codec=None, categories=None)))
def test_visible_text_is_printable_and_can_be_encoded(text: str) -> None:
    shown = visible(text)

    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert visible(shown) == shown
    shown.encode()


@given(st.text(), st.integers(200, 400))
def test_shortened_text_is_within_the_size_limit(text: str, most_bytes: int) -> None:
    shown = shortened(text, most_bytes, rest="The rest is in 'x'.")

    assert len(shown.encode()) <= most_bytes
    assert shown == text or "The rest is in 'x'." in shown


def test_shortened_text_is_limited_in_bytes() -> None:
    assert len(shortened("\u2603" * 300, 400).encode()) <= 400
    assert "x" not in shortened("x" * 1000, 20)


@pytest.mark.parametrize(
    ("has_colours", "text", "written"),
    [
        (True, "\x1b[1;31mred\x1b[0m \x1b[2J", "\x1b[1;31mred\x1b[0m \\x1b[2J"),
        (False, "\x1b[31mred", "\\x1b[31mred"),
        (False, "\rrun 1 of 3 \rx", "\rrun 1 of 3 \\rx"),
        (True, "a\r\nb\u202e", "a\nb\\u202e"),
    ],
)
def test_stream_escapes_all_control_characters_except_colours(
    has_colours: bool, text: str, written: str
) -> None:
    file = io.StringIO()

    VisibleStream(file, has_colours=has_colours).writelines([text])

    assert file.getvalue() == written


def test_stream_escapes_characters_that_its_encoding_lacks() -> None:
    raw = io.BytesIO()
    stream = VisibleStream(
        io.TextIOWrapper(raw, encoding="ascii", write_through=True), has_colours=False
    )

    stream.write("é\udce9\n")

    assert raw.getvalue() == b"\\xe9\\udce9\n"
