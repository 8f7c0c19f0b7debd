"""Hand-written tables and names in the pages agree with the code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.cli import build_parser
from harness.plugin.specs import hooks
from harness.provisioning.__main__ import _parser as build_provisioning_parser
from harness.reference.option_pages import pytest_options
from suites.docs import tables
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

_MEMBER_OF_FILE = re.compile(r"`([\w/]+\.py)`: `(\w+)`")


def test_every_checked_table_is_on_exactly_one_page(pages: list[Page]) -> None:
    headers = sorted(table.header[0] for page in pages for table in page.tables)

    assert [header for header in headers if header in tables.TABLES] == sorted(tables.TABLES)


@pytest.mark.parametrize("header", tables.TABLES)
def test_table_on_a_page_has_the_same_rows_as_the_code(
    pages: list[Page], header: str, tmp_path: Path
) -> None:
    (table,) = (t for page in pages for t in page.tables if t.header[0] == header)

    tables.check_table(table, tables.TABLES[header](tmp_path))


def test_names_in_inline_code_on_the_pages_exist(
    pages: list[Page],
    blocks: Callable[[str], list[Block]],
    pytestconfig: pytest.Config,
) -> None:
    shown = [
        word for block in blocks("sh") for line in command_lines(block) for word in line.words
    ]
    options = {
        *options_of(build_parser()),
        *options_of(build_provisioning_parser()),
        *options_of(build_mutation_parser()),
        *(option.name for option in pytest_options()[0]),
        *(option.name for option in pytest_options(hooks.pytest_addoption)[0]),
        *(f"--{name}" for name in vars(pytestconfig.option)),  # pytest's and its plugins'
        *(word.partition("=")[0] for word in shown),
    }

    for page in pages:
        for span in page.code:
            check_name(span, repository=REPOSITORY, options=options)


def test_members_on_the_architecture_page_exist_in_their_files() -> None:
    """The page refers to a member as `file.py`: `name`."""
    found = _MEMBER_OF_FILE.findall((REPOSITORY / "docs/architecture.md").read_text())

    assert found
    for path, name in found:
        assert re.search(rf"\b{name}\b", (REPOSITORY / path).read_text()), f"{path}: {name}"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["| a | 1 | x |"], "'b' is not listed; write | b | 2 | … |"),
        (["| a | 1 | x |", "| b | 2 | y |", "| c | 3 | z |"], "'c' is listed, but the code has"),
        (["| a | 1 | x |", "| b | 3 | y |"], "but the code has | b | 2 | … |"),
        (["| a | 1 | x |", "| b | 2 | y |", "| a | 1 | x |"], "a name is listed twice"),
    ],
)
def test_wrong_row_of_a_table_is_reported(rows: list[str], message: str) -> None:
    table = table_of("| Key | Default | Meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n")

    with pytest.raises(StaleDocumentError, match=rf"page.md:1: .*{re.escape(message)}"):
        tables.check_table(table, [("a", "1", None), ("b", "2", None)])


def table_of(text: str) -> Table:
    (table,) = parse_page("page.md", text).tables
    return table


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("harness.gpu.no_such_thing", "There is no 'harness.gpu.no_such_thing'"),
        ("expect.gpu_bonud", "'expect' has no 'gpu_bonud'"),
        ("node.explode()", "'node' has no 'explode'"),
        ("suites/e3e/", "There is nothing at 'suites/e3e/'"),
        ("images/*.yml", "There is nothing at 'images/*.yml'"),
        ("--evidance=always", "know '--evidance'"),
    ],
)
def test_missing_name_in_inline_code_is_reported(name: str, message: str) -> None:
    span = Span(place=Place(page="page.md", line=1), text=name)

    with pytest.raises(StaleDocumentError, match=re.escape(message)):
        check_name(span, repository=REPOSITORY, options={"--evidence"})
