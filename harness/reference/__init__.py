"""The pages of `harness docs`: pages that people wrote, and reference pages made from the code."""

from __future__ import annotations

import importlib.metadata
import posixpath
import re
from functools import partial
from typing import TYPE_CHECKING

from harness.reference import code_pages, data_pages, option_pages
from harness.reference.markdown import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

#: Pages that are made from the code, by name. A page's name is its address on the site, without the
#: ending.
GENERATED: dict[str, Callable[[], str]] = {
    "reference/benchmarks": code_pages.benchmark_page,
    "reference/commands": option_pages.command_page,
    "reference/expectations": code_pages.expectation_page,
    "reference/fixtures": code_pages.fixture_page,
    "reference/gpus": data_pages.gpu_page,
    "reference/images": data_pages.image_page,
    "reference/limits": data_pages.limit_page,
    "reference/provisioners": data_pages.provisioner_page,
    "reference/provisioning": data_pages.provisioning_page,
    "reference/pytest": option_pages.pytest_page,
}
_README = "index"
_DISTRIBUTION = "gpu-node-harness"
#: The pages of an installed wheel, below the folder of its environment.
_INSTALLED = f"share/doc/{_DISTRIBUTION}/*.md"

_PICTURE = re.compile(r"\[?!\[[^]]*\]\([^)\s]+\)(?:\]\([^)\s]+\))?\n*")
_LINK = re.compile(r"\[([^]]+)\]\((?!https?://)([^)\s]+)\)")


def pages() -> dict[str, Callable[[], str]]:
    """Return a mapping from each page's name to a function that makes the page."""
    written = {_name_of(file): partial(file.read_text, encoding="utf-8") for file in _files()}
    makers: dict[str, Callable[[], str]] = {**written, **GENERATED}
    return {name: partial(_page, name, make, makers) for name, make in makers.items()}


def _files() -> list[Path]:
    checkout = PACKAGE.parent
    if (checkout / "mkdocs.yml").is_file():
        return [checkout / "README.md", *sorted((checkout / "docs").glob("*.md"))]
    listed = importlib.metadata.files(_DISTRIBUTION) or ()
    return sorted(
        (PACKAGE / file.locate() for file in listed if file.match(_INSTALLED)),
        key=lambda file: (file.name != "README.md", file.name),
    )


def _name_of(file: Path) -> str:
    return _README if file.name == "README.md" else file.stem


def _page(name: str, make: Callable[[], str], names: Collection[str]) -> str:
    return for_terminal(name, make(), names)


def for_terminal(page: str, text: str, names: Collection[str]) -> str:
    """Return a page's Markdown for a terminal.

    Pictures are left out. A link to another page is replaced by the link's words and the page's
    name.
    """
    source = "README.md" if page == _README else f"docs/{page}.md"

    def rewrite(found: re.Match[str]) -> str:
        words, target = found[1], found[2].partition("#")[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        name = path.removeprefix("docs/").removesuffix(".md")
        name = _README if path == "README.md" else name
        return f"{words} (`{name}`)" if target and name in names and name != page else words

    return _LINK.sub(rewrite, _PICTURE.sub("", text))
