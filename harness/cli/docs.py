"""`harness docs`: shows the documentation in a terminal."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from typing import TYPE_CHECKING, Protocol

from harness.cli.columns import print_columns
from harness.errors import BadInputError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Mapping

    from harness.cli.options import Commands

#: The maximum number of columns of a page, since longer lines are hard to read.
_WIDEST = 120
#: Options of `less`, unless LESS is set: quit if one screen is enough, pass colours, do not clear the screen.
_LESS = "FRX"


class _Documentation(Protocol):
    def pages(self) -> dict[str, Callable[[], str]]: ...


def add_parser(commands: Commands) -> None:
    """Add `docs` to the commands of `harness`."""
    parser = commands.add_parser("docs")
    parser.add_argument(
        "page", nargs="?", metavar="PAGE", help="the page to show; without PAGE, list the pages"
    )
    parser.add_argument(
        "--search",
        metavar="WORD",
        help="print the lines of PAGE, or of all pages, that contain a word",
    )
    parser.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    pages = _pages()
    if arguments.page is not None:
        name = choose_page(arguments.page, pages)
        pages = {name: pages[name]}
    if arguments.search is not None:
        return _search(arguments.search, pages)
    if arguments.page is not None:
        (make,) = pages.values()
        _print_page(make())
        return 0
    print_columns(("PAGE", "TITLE"), ((name, title(make())) for name, make in pages.items()))
    print(
        "\n'harness docs PAGE' shows a page, 'harness docs --search WORD' finds a word in all pages."
    )
    return 0


def _pages() -> dict[str, Callable[[], str]]:
    # `harness.reference` is imported at run time by its name: its pages list the options of
    # pytest, and commands must not import modules of the plugin.
    documentation: _Documentation = importlib.import_module("harness.reference")
    return documentation.pages()


def choose_page(word: str, names: Collection[str]) -> str:
    """Return the full name of the page that `word` selects.

    The last part of a page's name is enough if no other page's name has the same last part.
    """
    name = word.removesuffix(".md")
    if name in names:
        return name
    ends = [each for each in names if each.rpartition("/")[2] == name]
    if len(ends) == 1:
        return ends[0]
    near = difflib.get_close_matches(name, names)
    hint = f" Is it {' or '.join(map(repr, near))}?" if near else ""
    raise BadInputError(
        f"There is no page '{word}'.{hint} 'harness docs' lists the pages.", source="PAGE"
    )


def title(text: str) -> str:
    """Return the title of a page of Markdown."""
    return text.partition("\n")[0].removeprefix("# ")


def _search(word: str, pages: Mapping[str, Callable[[], str]]) -> int:
    wanted = re.compile(re.escape(word), re.IGNORECASE)
    found = [
        (name, " ".join(line.split()))
        for name, make in pages.items()
        for line in make().splitlines()
        if wanted.search(line)
    ]
    for name, line in found:
        print(f"{name}: {line}")
    if not found:
        raise BadInputError(f"No page contains '{word}'.", source="--search")
    return 0


def _print_page(text: str) -> None:
    """Show a page in a pager if the output is a terminal; otherwise print the page's Markdown."""
    if not sys.stdout.isatty():
        print(text.rstrip())
        return
    # rich loads more slowly than a clone starts, and only output to a terminal needs rich.
    from rich.console import Console  # noqa: PLC0415
    from rich.markdown import Markdown  # noqa: PLC0415

    os.environ.setdefault("LESS", _LESS)
    console = Console()
    console.width = min(console.width, _WIDEST)
    with console.pager(styles=True):
        console.print(Markdown(text))
