"""Renders pages, tables and docstrings as Markdown."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The folder of `harness`, in a checkout and where the wheel is installed.
PACKAGE = Path(__file__).parents[1]

_CODE_WORD = re.compile(r"(?<![`\w./])(\*?\w*_\w+(?:\.\w+)*|--[\w-]+)(?![`\w])")


def page(title: str, *parts: str) -> str:
    """Return a page with a title and parts; a blank line follows a part that ends with a newline."""
    return "\n".join((f"# {title}\n", *parts))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a vertical bar in a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return `text` as a code span."""
    return f"`{text}`"


def anchor(heading: str) -> str:
    """Return the anchor that Python-Markdown gives to a heading."""
    words = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def first_sentence(text: str | None) -> str:
    """Return the first line of a docstring."""
    return inspect.cleandoc(text or "").partition("\n")[0]


def prose(text: str | None) -> str:
    """Return a docstring as Markdown: names with underscores become code spans.

    Indented lines stay unchanged, since Markdown shows indented lines as code.
    """
    lines = inspect.cleandoc(text or "").splitlines()
    return "\n".join(line if line.startswith("    ") else _with_spans(line) for line in lines)


def _with_spans(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        part if part.startswith("`") else _CODE_WORD.sub(r"`\1`", part) for part in parts
    )


def sentence(words: str) -> str:
    """Return `words` with a capital letter at the start and a full stop at the end."""
    text = words.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
