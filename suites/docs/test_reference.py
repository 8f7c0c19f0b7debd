"""Tables and names in the pages are the code's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.cli import build_parser
from harness.plugin import specfiles
from harness.provisioning.__main__ import _parser as build_provisioning_parser
from suites.docs import reference
from suites.docs.commands import command_lines, options_of
from suites.docs.names import check_name
from suites.docs.pages import (
    REPOSITORY,
    Page,
    Place,
    Span,
    StaleDocumentError,
    Table,
    parse_page,
)
from suites.mutation.__main__ import build_parser as build_mutation_parser

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from suites.docs.pages import Block


def test_every_table_has_a_check_and_every_check_a_table(pages: list[Page]) -> None:
    headers = sorted(table.header[0] for page in pages for table in page.tables)

    assert headers == sorted({*reference.TABLES, *reference.PROSE})


@pytest.mark.parametrize("header", reference.TABLES)
def test_table_is_as_the_code_says(pages: list[Page], header: str, tmp_path: Path) -> None:
    (table,) = (t for page in pages for t in page.tables if t.header[0] == header)

    reference.check_table(table, reference.TABLES[header](tmp_path))


def test_names_in_prose_are_there(pages: list[Page], blocks: Callable[[str], list[Block]]) -> None:
    shown = [
        word for block in blocks("sh") for line in command_lines(block) for word in line.words
    ]
    options = {
        *options_of(build_parser()),
        *options_of(build_provisioning_parser()),
        *options_of(build_mutation_parser()),
        *(str(name) for name, *_ in reference.pytest_options()),
        *(str(name) for name, *_ in reference.pytest_options(specfiles.pytest_addoption)),
        *(word.partition("=")[0] for word in shown),
    }

    for page in pages:
        for span in page.code:
            check_name(span, repository=REPOSITORY, options=options)


@pytest.mark.parametrize(
    ("rows", "trouble"),
    [
        (["| a | 1 | x |"], "'b' is not listed; write | b | 2 | … |"),
        (["| a | 1 | x |", "| b | 2 | y |", "| c | 3 | z |"], "'c' is listed, but the code has"),
        (["| a | 1 | x |", "| b | 3 | y |"], "but the code says | b | 2 | … |"),
        (["| a | 1 | x |", "| b | 2 | y |", "| a | 1 | x |"], "a name is listed twice"),
    ],
)
def test_table_that_is_not_as_the_code_says_is_refused(rows: list[str], trouble: str) -> None:
    table = table_of("| Key | Default | Meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n")

    with pytest.raises(StaleDocumentError, match=rf"page.md:1: .*{re.escape(trouble)}"):
        reference.check_table(table, [("a", "1", None), ("b", "2", None)])


def table_of(text: str) -> Table:
    (table,) = parse_page("page.md", text).tables
    return table


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("harness.gpu.no_such_thing", "There is no 'harness.gpu.no_such_thing'"),
        ("expect.gpu_bonud", "'expect' has no 'gpu_bonud'"),
        ("node.explode()", "'node' has no 'explode'"),
        ("suites/e3e/", "There is nothing at 'suites/e3e/'"),
        ("images/*.yml", "There is nothing at 'images/*.yml'"),
        ("--evidance=always", "know '--evidance'"),
    ],
)
def test_name_that_is_not_there_is_refused(name: str, trouble: str) -> None:
    span = Span(place=Place(page="page.md", line=1), text=name)

    with pytest.raises(StaleDocumentError, match=re.escape(trouble)):
        check_name(span, repository=REPOSITORY, options={"--evidence"})
