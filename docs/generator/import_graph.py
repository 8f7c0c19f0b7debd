"""Draws the imports between packages and between modules, from the code's import graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grimp

from docs.generator import drawing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from grimp import ImportGraph

ROOT = "harness"


def read_graph() -> ImportGraph:
    """Return the import graph of the library, including imports for type checking only."""
    return grimp.build_graph(ROOT, cache_dir=None)


def pictures(graph: ImportGraph, repository: Path) -> dict[str, str]:
    """Return an SVG, by package name, for each package whose children import each other."""
    packages = [ROOT, *sorted(_packages(repository))]
    drawn = ((package, imports_within(graph, package)) for package in packages)
    return {
        package: drawing.layered(edges, title=f"Imports within {package}")
        for package, edges in drawn
        if any(edges.values())
    }


def _packages(repository: Path) -> list[str]:
    return [
        ".".join(file.parent.relative_to(repository).parts)
        for file in (repository / ROOT).glob("*/**/__init__.py")
    ]


def imports_within(graph: ImportGraph, package: str) -> dict[str, frozenset[str]]:
    """Return, for each child of a package, the siblings that the child or its descendants import.

    If A imports B and B imports C, an import of C by A is left out.
    """
    children = sorted(graph.find_children(package))
    members = {child: {child, *graph.find_descendants(child)} for child in children}
    owner = {module: child for child, modules in members.items() for module in modules}
    imported: dict[str, set[str]] = {child: set() for child in children}
    for child, modules in members.items():
        for module in modules:
            for target in graph.find_modules_directly_imported_by(module):
                if owner.get(target, child) != child:
                    imported[child].add(owner[target])
    short = {child: child.rpartition(".")[2] for child in children}
    return {
        short[child]: frozenset(short[target] for target in targets)
        for child, targets in reduced(imported).items()
    }


def reduced(imported: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the transitive reduction of a graph without cycles."""
    reached: dict[str, set[str]] = {}

    def reach(name: str) -> set[str]:
        if name not in reached:
            reached[name] = set()
            reached[name] = set().union(*({one, *reach(one)} for one in imported[name]))
        return reached[name]

    return {
        name: {
            target
            for target in targets
            if not any(target in reach(other) for other in targets - {target})
        }
        for name, targets in imported.items()
    }
