"""Lists the tests that check provisioning's contract, for the tables in `docs/promises.md`.

`python -m suites.e2e.promises` writes the page from the tests that pytest collects, and
`suites/docs/test_promises.py` compares the page with the tests. The page has a row for each
machine test; a test without a row is an error, and so is a row without a test.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/promises.md"
#: Each folder of `suites/e2e` with tests of the contract, in the order of the page.
FAMILIES = (
    "record",
    "kernel",
    "teardown",
    "services",
    "registry",
    "runtime",
    "precompiled",
    "observability",
    "interruption",
)

_HEAD = """\
# Promises

This page lists the promises of provisioning, with the section of its contract and the tests that check each promise:
a unit test with mocked commands, and a test on machines with each distribution. `python -m suites.e2e.promises`
generates this page from the tests.
"""
_COLLECT_S = 120.0
_PASSTHROUGH = "passthrough"
_IMAGE = "debian-12"
_ROW = re.compile(r"^promise\t(?P<fields>.*)$", re.MULTILINE)


def promise(
    *,
    section: str,
    unit: str,
    each_change: bool | tuple[str, ...] = False,
    any_provisioner: bool | tuple[str, ...] = False,
) -> pytest.MarkDecorator:
    """Mark a machine test as a row of the page, or as several rows if the test has parameters.

    `section` is the section of the contract; `unit` is the unit test of the same behaviour, or the
    file of this unit test. All rows together take more than an hour. So `./dev test` runs only
    rows with `each_change`, on the first distribution; the other rows are nightly. `each_change`
    may also list the parameter ids of such rows. Rows with `any_provisioner`, which may also list
    ids, run with other provisioners too.
    """
    return pytest.mark.promise(
        section=section, unit=unit, each_change=each_change, any_provisioner=any_provisioner
    )


def is_nightly(item: pytest.Item) -> bool:
    """Return whether `./dev test` leaves a collected test out.

    These tests are rows without `each_change`, and tests on a host with real VFIO, since making
    this host's image and saved state takes minutes.
    """
    if _PASSTHROUGH in item.path.parts:
        return True
    marker = item.get_closest_marker("promise")
    if marker is None:
        return False
    chosen = marker.kwargs["each_change"]
    if item.get_closest_marker("further_image") is not None:
        return True
    return not _is_chosen(item, chosen)


def is_for_any_provisioner(item: pytest.Item) -> bool:
    """Return whether a collected test can check a provisioner other than the harness's own.

    These tests are rows with `any_provisioner`, and tests that are in no family.
    """
    marker = item.get_closest_marker("promise")
    return marker is None or _is_chosen(item, marker.kwargs["any_provisioner"])


def _is_chosen(item: pytest.Item, chosen: bool | tuple[str, ...]) -> bool:
    if isinstance(chosen, tuple):
        return item.name.endswith(tuple(f"-{each}]" for each in chosen))
    return chosen


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: a machine test, with the id of its parameter if it has one."""

    family: str
    title: str
    section: str
    unit: str
    test: str

    def render(self) -> str:
        return f"| {self.title} | {self.section} | `{self.unit}` | `{self.test}` |"


def row_of(item: pytest.Function) -> Row | None:
    """Return the row of a collected test, or None if the test is not marked.

    Raises ValueError if a test of a family has no mark or no docstring.
    """
    path = item.path.relative_to(REPOSITORY)
    family = path.parts[2]
    marker = item.get_closest_marker("promise")
    if marker is None:
        if family in FAMILIES:
            raise ValueError(f"'{item.nodeid}' is in a family, but has no marker 'promise'.")
        return None
    words = item.function.__name__.removeprefix("test_").replace("_", " ")
    case = re.sub(rf"(^|-){_IMAGE}(-|$)", "", item.nodeid.partition("[")[2].rstrip("]"))
    if not (item.function.__doc__ or "").strip():
        raise ValueError(f"'{item.nodeid}' is in a family, but has no docstring.")
    return Row(
        family=family,
        title=f"{words}: {case}" if case else words,
        section=marker.kwargs["section"],
        unit=marker.kwargs["unit"],
        test=f"{path.as_posix()}::{item.function.__name__}",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Print the rows of the collected tests, one per line, if this module is loaded as a plugin."""
    for item in session.items:
        row = row_of(item) if isinstance(item, pytest.Function) else None
        if row is not None:
            fields = ("promise", row.family, row.title, row.section, row.unit, row.test)
            sys.stdout.write("\t".join(fields) + "\n")


def collected_rows(*options: str) -> list[Row]:
    """Return the rows of all e2e tests, collected by a separate pytest process with these options.

    Raises HarnessError.
    """
    argv = [
        *("env", "--chdir", str(REPOSITORY), sys.executable, "-m", "pytest"),
        *("-p", "suites.e2e.promises", "-p", "no:cacheprovider", "suites/e2e"),
        *("--collect-only", "-q", "-n0", f"--image={_IMAGE}", *options),
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = LocalRunner().run(argv, timeout_s=_COLLECT_S, env=environment)
    result.check("Collecting the tests of the promises")
    rows = [found["fields"].split("\t") for found in _ROW.finditer(result.stdout)]
    return [
        Row(family=family, title=title, section=section, unit=unit, test=test)
        for family, title, section, unit, test in rows
    ]


def render_page(rows: Iterable[Row]) -> str:
    """Render the page with these rows."""
    ordered = sorted(rows, key=lambda row: (FAMILIES.index(row.family), row.test))
    return "\n".join([_HEAD, *_tables(ordered)])


def _tables(rows: Iterable[Row]) -> Iterator[str]:
    for family, members in groupby(rows, key=lambda row: row.family):
        yield f"## {family.capitalize()}\n"
        yield "| Promise | Section | Unit test | Machine test |"
        yield "|---|---|---|---|"
        yield from (row.render() for row in members)
        yield ""


def main() -> None:
    """Write the page."""
    PAGE.write_text(render_page(collected_rows()))


if __name__ == "__main__":
    main()
