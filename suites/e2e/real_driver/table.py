"""Writes the table of models and drivers in `docs/gpus.md` from the JUnit files of runs.

    pytest suites/e2e/real_driver/test_opened_models.py … --junitxml=13.xml
    python -m suites.e2e.real_driver.table 13.xml 12.xml

A cell of a later file replaces the same cell of an earlier file. A cell that is in no file stays
empty.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PAGE = Path(__file__).parents[3] / "docs/gpus.md"
_BEGIN = "<!-- Written by suites/e2e/real_driver/table.py -->\n"
_END = "<!-- End -->\n"
_DRIVER = re.compile(
    r"NVRM version: NVIDIA UNIX (?P<open>Open )?.*?(?P<release>\d+\.\d+(?:\.\d+)?)"
)
_QEMU = re.compile(r"version (\d+\.\d+)")


def read_cells(file: Path) -> dict[tuple[str, str], str]:
    """Return the cells in a JUnit file, by column and GPU; the cell of a failed test is 'failed'."""
    cells = {}
    for case in ET.parse(file).iter("testcase"):  # noqa: S314 - a file of our own run
        facts = {
            each.get("name", ""): each.get("value", "")
            for each in case.iterfind("properties/property")
        }
        driver = _DRIVER.search(facts.get("driver", ""))
        qemu = _QEMU.search(facts.get("qemu", ""))
        if driver is None or qemu is None:
            continue
        kind = "open" if driver["open"] else "proprietary"
        column = f"{driver['release']} {kind}, QEMU {qemu[1]}"
        cells[column, facts["gpu"]] = facts.get("cell", "failed")
    return cells


def render_table(cells: Mapping[tuple[str, str], str]) -> str:
    """Return the table, with a row for each GPU and a column for each driver and QEMU."""
    columns = sorted({column for column, _ in cells})
    lines: list[Iterable[str]] = [["GPU", *columns], ["---"] * (1 + len(columns))]
    lines += [
        [f"`{gpu}`", *(cells.get((column, gpu), "") for column in columns)]
        for gpu in sorted({gpu for _, gpu in cells})
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---")


def replace_table(page: str, table: str) -> str:
    """Return the page with the table between the page's two marker lines."""
    before, _, rest = page.partition(_BEGIN)
    _, found, after = rest.partition(_END)
    if not found:
        raise SystemExit(f"'{_PAGE}' has no lines {_BEGIN.strip()!r} and {_END.strip()!r}.")
    return f"{before}{_BEGIN}\n{table}\n{_END}{after}"


if __name__ == "__main__":
    all_cells: dict[tuple[str, str], str] = {}
    for name in sys.argv[1:]:
        all_cells |= read_cells(Path(name))
    _PAGE.write_text(replace_table(_PAGE.read_text(), render_table(all_cells)))
