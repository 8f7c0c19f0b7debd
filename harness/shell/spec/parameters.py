"""Reads the rows of a `Parameters` block: as words, and as code that passes the rows to the shell."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.shell.lexer import Word, is_open, quote, quote_on_a_line, split_words, strip_comment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Evaluate = Callable[[str], Sequence[tuple[str, ...]]]

MODES = frozenset({"block", "value", "matrix", "dynamic"})
_DATA = re.compile(r"(^|[\n;]|\bdo\b|\bthen\b|\{|&&|\|\|)([ \t]*)%data\b")


@dataclass(frozen=True)
class Rows:
    """The rows of a `Parameters` block, as words that may still need expansion (`rows`) and as shell code (`code`)."""

    rows: list[tuple[Word, ...]]
    code: str


def read(mode: str, lines: Sequence[str], evaluate: Evaluate) -> Rows:
    """Read the `lines` inside a `Parameters` block; in the mode `value`, `lines` has only one item, with all words.

    `evaluate` runs code that calls `%data` for each row.
    """
    if mode == "dynamic":
        return _dynamic("\n".join(lines), evaluate)
    if mode == "block":
        return _block(lines)
    if mode == "value":
        return _product(lines, evaluate)
    stripped = (strip_comment(line).replace("\\\n", " ") for line in _joined(lines))
    return _product([line for line in stripped if line.strip()], evaluate)


def name_of_row(name: str, row: Sequence[Word]) -> str:
    """Replace `$1`, `$2`… in an example's name by the literal words of a row."""

    def value(found: re.Match[str]) -> str:
        at = int(found[1] or found[2]) - 1
        return row[at].text if at < len(row) else ""

    return re.sub(r"\$(?:\{(\d+)\}|(\d))", value, name).replace("\n", " ")


def _block(lines: Sequence[str]) -> Rows:
    """Read one row from each line; the shell expands the words on that line."""
    rows: list[tuple[Word, ...]] = []
    code = [":"]
    for line in _joined(lines):
        words = split_words(line)
        if words:
            rows.append(tuple(words))
            code.append(f"__hx_row {line.lstrip()}")
        else:
            code.append(line)
    return Rows(rows, "\n".join([*code, ":"]))


def _joined(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines; join a line that has an open quote at its end with the next line."""
    line = ""
    for at, part in enumerate(lines):
        line += part
        if is_open(line) and at < len(lines) - 1:
            line += "\n"
            continue
        yield line
        line = ""


def _product(lines: Sequence[str], evaluate: Evaluate) -> Rows:
    """Return all combinations of the words on the lines; if a word needs expansion, a shell makes the combinations."""
    rows = list(itertools.product(*(split_words(line) for line in lines)))
    if all(word.literal for row in rows for word in row):
        return _literal([tuple(word.text for word in row) for row in rows])
    numbers = range(1, len(lines) + 1)
    loops = "; do ".join(f"for __hx_{n} in {line}" for n, line in zip(numbers, lines, strict=True))
    data = "%data " + " ".join(f'"$__hx_{n}"' for n in numbers)
    return _dynamic(f"{loops}; do {data}" + "; done" * len(lines), evaluate)


def _dynamic(code: str, evaluate: Evaluate) -> Rows:
    return _literal(evaluate(_DATA.sub(r"\1\2__hx_data_row", code)))


def _literal(rows: Sequence[tuple[str, ...]]) -> Rows:
    code = [
        ":",
        *("__hx_row " + " ".join(quote_on_a_line(value) for value in row) for row in rows),
    ]
    words = [tuple(Word(quote(value), value, literal=True) for value in row) for row in rows]
    return Rows(words, "; ".join(code))
