"""Generates reference pages that the installed package lacks: modules, and commands of `./dev`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.reference.code_pages import docstring_of
from harness.reference.markdown import anchor, code, first_sentence, page, table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


def module_page(repository: Path, pictures: Collection[str]) -> str:
    """Return the page with pictures of packages, and the first docstring line of every module."""
    parts = []
    for package in _packages(repository / "harness"):
        name = ".".join(package.relative_to(repository).parts)
        parts.append(f"## `{name}`\n\n{docstring_of(package / '__init__.py')}\n")
        if name in pictures:
            parts.append(
                f"[![Imports within {name}](../pictures/{name}.svg)](../pictures/{name}.svg)\n"
            )
        rows = [
            (code(file.stem), first_sentence(docstring_of(file)))
            for file in sorted(package.glob("*.py"))
            if file.name != "__init__.py"
        ]
        inner = [
            (
                f"[`{one.name}`](#{anchor(f'{name}.{one.name}')})",
                first_sentence(docstring_of(one / "__init__.py")),
            )
            for one in sorted(package.iterdir())
            if (one / "__init__.py").exists()
        ]
        if rows or inner:
            parts.append(table(("Module", "Purpose"), [*inner, *rows]))
    return page(
        "Modules",
        "Every package and module of `harness`, with the first line of its docstring. An arrow "
        "means that a module imports another. If A imports B and B imports C, the arrow from A to "
        "C is left out. [Architecture](../architecture.md) explains how modules work together.\n",
        *parts,
    )


def _packages(top: Path) -> Iterator[Path]:
    yield top
    for folder in sorted(top.iterdir()):
        if (folder / "__init__.py").exists():
            yield from _packages(folder)


def dev_commands(repository: Path) -> list[tuple[str, str]]:
    """Return the commands of `./dev` with their purposes, from the comment at the top of `dev`."""
    rows: list[list[str]] = []
    for line in re.findall(r"^#   (.*)$", (repository / "dev").read_text(), re.MULTILINE):
        if line.startswith("./dev"):
            command, _, words = line.partition("  ")
            rows.append([code(command), words.strip()])
        else:
            rows[-1][1] = f"{rows[-1][1]} {line.strip()}".strip()
    return [(command, words) for command, words in rows]
