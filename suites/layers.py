"""The import contract of the table in `pyproject.toml`: imports point down, in every package of `harness`.

import-linter's own contract of layers does not see what a package's `__init__` imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from importlinter import Contract, ContractCheck, fields, output
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from grimp import ImportGraph

_TOP = "harness"
#: What the table calls the module of the package itself.
INIT = "__init__"


class _Table(fields.Field[dict[str, list[str]]]):
    """The layers of each package, the highest first."""

    @override
    def parse(self, raw_data: object) -> dict[str, list[str]]:
        assert isinstance(raw_data, dict)
        return raw_data


class LayerTable(Contract):
    """In each package, modules import only from lower layers, and not from their own layer."""

    type_name = "layer_table"
    packages = _Table()

    @override
    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        found = list(problems(graph, self.packages))  # type: ignore[arg-type] # parsed by now
        return ContractCheck(kept=not found, metadata={"problems": found})

    @override
    def render_broken_contract(self, check: ContractCheck) -> None:
        for problem in check.metadata["problems"]:
            output.print_error(problem)


def problems(graph: ImportGraph, table: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a sentence for each contradiction between the imports and the table."""
    named = {_TOP if name == _TOP else f"{_TOP}.{name}": layers for name, layers in table.items()}
    for package in sorted({_TOP, *graph.find_descendants(_TOP)}):
        children = {child.rpartition(".")[2] for child in graph.find_children(package)}
        if not children:
            continue
        if package not in named:
            yield f"The table names no layers of the package '{package}'."
            continue
        levels = {
            name: level
            for level, layer in enumerate(named[package])
            for name in layer.split(" | ")
        }
        yield from (f"'{package}.{each}' is in no layer." for each in sorted(children - {*levels}))
        gone = sorted({*levels} - children - {INIT})
        yield from (f"'{package}' has no module '{each}', which the table names." for each in gone)
        yield from _upward(graph, package, levels)
    yield from (
        f"There is no package '{each}', which the table names."
        for each in named
        if each not in graph.modules
    )


def _upward(graph: ImportGraph, package: str, levels: Mapping[str, int]) -> Iterator[str]:
    for importer in sorted({package, *graph.find_descendants(package)}):
        source = _part(importer, package)
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            if imported != package and not imported.startswith(f"{package}."):
                continue
            target = _part(imported, package)
            if source == target:
                continue
            if source not in levels or target not in levels:
                if INIT in {source, target} - {*levels}:
                    yield f"'{importer}' imports '{imported}', but '{INIT}' is in no layer of '{package}'."
            elif levels[source] >= levels[target]:
                yield f"'{importer}' imports '{imported}', which is not in a lower layer of '{package}'."


def _part(module: str, package: str) -> str:
    """Return the child of the package to which a module belongs, or INIT."""
    return module[len(package) + 1 :].partition(".")[0] or INIT
