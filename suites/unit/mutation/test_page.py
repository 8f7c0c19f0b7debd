"""The table of survivors can be parsed, and names functions that exist."""

from __future__ import annotations

import importlib
from pathlib import Path

from suites.mutation.tool import SURVIVORS_PAGE, parse_page

PAGE = (Path(__file__).parents[3] / SURVIVORS_PAGE).read_text()


def test_every_row_of_the_page_is_read() -> None:
    _, _, table = PAGE.partition("|---|---|---|\n")
    rows = [line for line in table.splitlines() if line.startswith("|")]

    assert len(parse_page(PAGE)) == len(rows) > 0


def test_every_function_on_the_page_is_there() -> None:
    for function, _ in parse_page(PAGE):
        name, *path = function.split(".")
        found: object = importlib.import_module(f"harness.provisioning.{name}")
        for part in path:
            found = getattr(found, part)
        assert callable(found)


def test_every_reason_is_a_sentence() -> None:
    for reason in parse_page(PAGE).values():
        assert reason.endswith("."), reason
        assert len(reason.split()) > 3, reason
