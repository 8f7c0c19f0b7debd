"""Which page `harness docs` shows, and how a terminal shows links between pages."""

from __future__ import annotations

import os
import re
import sys

import pytest

from harness.cli import main
from harness.cli.docs import choose_page
from harness.errors import BadInputError
from harness.reference import for_terminal

NAMES = ("index", "images", "own-project", "reference/images", "reference/limits")


def test_page_is_found_by_its_name_or_the_last_part_of_the_name() -> None:
    names = {
        "images": "images",
        "reference/images": "reference/images",
        "limits": "reference/limits",
        "reference/limits.md": "reference/limits",
    }

    assert {word: choose_page(word, NAMES) for word in names} == names


def test_error_for_an_unknown_or_ambiguous_page_suggests_the_most_similar_page_name() -> None:
    with pytest.raises(BadInputError, match="There is no page 'a'"):
        choose_page("a", ("x/a", "y/a"))
    with pytest.raises(
        BadInputError,
        match=r"There is no page 'own-projekt'. Is it 'own-project'\? 'harness docs' lists",
    ):
        choose_page("own-projekt", NAMES)


LINKS = {
    ("index", "see [it](docs/images.md#keys)"): "see it (`images`)",
    ("images", "[first](../README.md#first)"): "first (`index`)",
    ("images", "[keys](reference/images.md)"): "keys (`reference/images`)",
    ("reference/images", "[keys](../images.md)"): "keys (`images`)",
    ("images", "[above](#above)"): "above",
    ("images", "[here](images.md#above)"): "here",
    ("images", "[it](../CONTRIBUTING.md)"): "it",
    ("images", "[it](../examples/README.md)"): "it",
    ("images", "[it](https://example.org/a.md)"): "[it](https://example.org/a.md)",
    ("index", "a\n\n![Picture](docs/pictures/overview.svg)\n\nb"): "a\n\nb",
    ("images", "[![P](../p/x.svg)](../p/x.svg)\nb"): "b",
}


def test_links_are_shown_as_page_names_and_pictures_are_omitted() -> None:
    shown = {(page, text): for_terminal(page, text, NAMES) for page, text in LINKS}

    assert shown == LINKS


def test_search_in_a_page_ignores_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "trust", "--search", "# TRUST"]) == 0

    assert capsys.readouterr().out == "trust: # Trust\n"


def test_search_word_is_not_a_regular_expression(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "trust", "--search", "#.Trust"]) == 2
    assert main(["docs", "trust", "--search", "argv[]("]) == 2

    assert "No page contains 'argv[]('." in capsys.readouterr().err


@pytest.mark.parametrize(("columns", "own", "widest"), [(300, None, 120), (50, "M", 50)])
def test_page_is_shown_in_a_pager_only_if_stdout_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: int,
    own: str | None,
    widest: int,
) -> None:
    shown: list[tuple[str, str | None]] = []
    monkeypatch.setattr("pydoc.pager", lambda text: shown.append((text, os.environ.get("LESS"))))
    for name, value in (
        ("COLUMNS", str(columns)),
        ("TERM", "xterm"),
        ("NO_COLOR", ""),
        ("LESS", own or ""),
    ):
        monkeypatch.setenv(name, value)
    if own is None:
        monkeypatch.delenv("LESS")
    assert main(["docs", "mutation"]) == 0
    assert capsys.readouterr().out.startswith("# Mutation tests")
    assert shown == []

    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    assert main(["docs", "mutation"]) == 0

    ((text, options),) = shown
    lines = [re.sub(r"\x1b\[[0-9;]*m|\x1b\]8;.*?\x1b\\\\", "", line) for line in text.splitlines()]
    assert max(map(len, lines)) == widest
    assert "\x1b[1" in text
    assert options == (own or "FRX")
    assert "Mutation" not in capsys.readouterr().out
