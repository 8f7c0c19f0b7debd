"""Prints lists as aligned columns with unshortened words, so that `grep` and `awk` can read the lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.visible_text import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def duration(seconds: float) -> str:
    """Return a duration as text, in the largest unit in which the number is at least 2."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= 2 * length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def print_columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print each row as a line of aligned columns; control characters in cells are escaped."""
    lines = [[visible_line(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
