"""Parses the pages into blocks, tables and code spans; mkdocs checks the links."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

REPOSITORY = Path(__file__).parents[2]


class StaleDocumentError(AssertionError):
    """A page does not agree with the code; the message begins with the page and the line."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A position in a page: `PAGE:LINE`, which editors can open."""

    page: str
    line: int

    def refuse(self, message: str) -> StaleDocumentError:
        """Return an error with this position and the message."""
        return StaleDocumentError(f"{self.page}:{self.line}: {message}")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block; `language` is the first word after the fence, `kind` the second or ''."""

    place: Place
    language: str
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; backticks are removed from its cells."""

    place: Place
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Span:
    """The text of a code span."""

    place: Place
    text: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page; `name` is its path in the repository."""

    name: str
    blocks: tuple[Block, ...]
    tables: tuple[Table, ...]
    code: tuple[Span, ...]


def read_pages(repository: Path = REPOSITORY) -> list[Page]:
    """Read the pages of the repository's root and every page of `docs`."""
    root = (repository / name for name in ("README.md", "CONTRIBUTING.md"))
    files = [*root, *sorted((repository / "docs").glob("**/*.md"))]
    return [
        parse_page(file.relative_to(repository).as_posix(), file.read_text()) for file in files
    ]


def parse_page(name: str, text: str) -> Page:
    """Parse a page's Markdown; reads no file."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    spans = [(place, child) for place, inline in _inlines(name, tokens) for child in inline]
    return Page(
        name=name,
        blocks=tuple(_blocks(name, tokens)),
        tables=tuple(_tables(name, tokens)),
        code=tuple(
            Span(place=place, text=child.content)
            for place, child in spans
            if child.type == "code_inline"
        ),
    )


def _blocks(name: str, tokens: Sequence[Token]) -> Iterator[Block]:
    for token in tokens:
        if token.type in {"fence", "code_block"}:
            language, _, kind = token.info.strip().partition(" ")
            yield Block(
                place=_place(name, token), language=language, kind=kind, text=token.content
            )


def _tables(name: str, tokens: Sequence[Token]) -> Iterator[Table]:
    place = Place(page=name, line=0)
    rows: list[list[str]] = []
    for number, token in enumerate(tokens):
        if token.type == "table_open":
            place, rows = _place(name, token), []
        elif token.type == "tr_open":
            rows.append([])
        elif token.type in {"th_open", "td_open"}:
            rows[-1].append(tokens[number + 1].content.replace("`", "").strip())
        elif token.type == "table_close":
            header, *body = (tuple(row) for row in rows)
            yield Table(place=place, header=header, rows=tuple(body))


def _inlines(name: str, tokens: Sequence[Token]) -> Iterator[tuple[Place, list[Token]]]:
    for token in tokens:
        if token.type == "inline":
            yield _place(name, token), token.children or []


def _place(name: str, token: Token) -> Place:
    return Place(page=name, line=token.map[0] + 1 if token.map else 0)
