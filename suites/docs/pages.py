"""The pages that people read, taken apart: blocks, tables, links and code spans."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

REPOSITORY = Path(__file__).parents[2]

_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


class StaleDocumentError(AssertionError):
    """A page says what is not so; the message begins with the page and its line."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something stands, as an editor opens it."""

    page: str
    line: int

    def refuse(self, trouble: str) -> StaleDocumentError:
        """Return the error that says what is wrong here."""
        return StaleDocumentError(f"{self.page}:{self.line}: {trouble}")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block; `language` is the first word behind the fence, `kind` the second, if any."""

    place: Place
    language: str
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table, its cells without backticks."""

    place: Place
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Span:
    """A link's target, or the text of a code span."""

    place: Place
    text: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page; `name` is its path in the repository."""

    name: str
    blocks: tuple[Block, ...]
    tables: tuple[Table, ...]
    links: tuple[Span, ...]
    code: tuple[Span, ...]
    anchors: frozenset[str]


def read_pages(repository: Path = REPOSITORY) -> list[Page]:
    """Read the README and every page of `docs`."""
    files = [repository / "README.md", *sorted((repository / "docs").glob("**/*.md"))]
    return [
        parse_page(file.relative_to(repository).as_posix(), file.read_text()) for file in files
    ]


def parse_page(name: str, text: str) -> Page:
    """Take a page's Markdown apart; pure."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    spans = [(place, child) for place, inline in _inlines(name, tokens) for child in inline]
    return Page(
        name=name,
        blocks=tuple(_blocks(name, tokens)),
        tables=tuple(_tables(name, tokens)),
        links=tuple(
            Span(place=place, text=str(child.attrs["href"]))
            for place, child in spans
            if child.type == "link_open"
        ),
        code=tuple(
            Span(place=place, text=child.content)
            for place, child in spans
            if child.type == "code_inline"
        ),
        anchors=frozenset(_anchors(tokens)),
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


def _anchors(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the anchors that GitHub gives to headings."""
    for token, following in itertools.pairwise(tokens):
        if token.type == "heading_open":
            words = following.content.replace("`", "").strip().lower()
            yield _NOT_IN_ANCHORS.sub("", words).replace(" ", "-")


def _place(name: str, token: Token) -> Place:
    return Place(page=name, line=token.map[0] + 1 if token.map else 0)


def check_link(page: Page, link: Span, pages: Sequence[Page], repository: Path) -> None:
    """Refuse a link to a file or a heading that is not there; the web is not asked."""
    target, _, anchor = link.text.partition("#")
    if target.startswith(("https://", "http://")):
        return
    if target:
        file = (repository / page.name).parent / target
        if not file.exists():
            raise link.place.refuse(f"The link leads to '{target}', which is not there.")
        name = file.resolve().relative_to(repository.resolve()).as_posix()
    else:
        name = page.name
    if not anchor:
        return
    linked = next((other for other in pages if other.name == name), None)
    if linked is None or anchor not in linked.anchors:
        raise link.place.refuse(f"'{name}' has no heading '#{anchor}'.")
