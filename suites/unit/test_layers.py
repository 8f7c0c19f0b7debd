"""The contract on imports, which also covers the `__init__` modules of packages."""

from __future__ import annotations

from grimp import ImportGraph

from suites.layers import problems

_TABLE = {"harness": ["lab", "machine"], "lab": ["registry", "__init__", "node | seed"]}


def _problems(*imports: tuple[str, str]) -> list[str]:
    graph = ImportGraph()
    for module in ("", ".lab", ".lab.registry", ".lab.node", ".lab.seed", ".machine"):
        graph.add_module(f"harness{module}")
    for importer, imported in imports:
        graph.add_import(importer=f"harness.{importer}", imported=f"harness.{imported}")
    return list(problems(graph, _TABLE))


def test_import_of_a_lower_layer_is_allowed() -> None:
    assert _problems(("lab.registry", "lab"), ("lab", "lab.node"), ("lab.seed", "machine")) == []


def test_import_of_a_higher_layer_is_reported() -> None:
    assert _problems(("machine", "lab.node")) == [
        "'harness.machine' imports 'harness.lab.node', which is not in a lower layer of 'harness'."
    ]


def test_imports_between_modules_of_the_same_layer_are_reported() -> None:
    assert len(_problems(("lab.node", "lab.seed"), ("lab.seed", "lab.node"))) == 2


def test_imports_in_the_init_module_of_a_package_are_checked() -> None:
    assert _problems(("lab", "lab.registry")) == [
        "'harness.lab' imports 'harness.lab.registry', which is not in a lower layer of 'harness.lab'."
    ]


def test_import_of_the_init_module_of_a_package_is_checked() -> None:
    assert _problems(("lab.node", "lab")) == [
        "'harness.lab.node' imports 'harness.lab', which is not in a lower layer of 'harness.lab'."
    ]


def test_differences_between_the_layer_table_and_the_modules_are_reported() -> None:
    graph = ImportGraph()
    for module in ("harness", "harness.machine", "harness.machine.qmp", "harness.new"):
        graph.add_module(module)

    assert sorted(problems(graph, _TABLE)) == [
        "'harness' has no module 'lab', which the table names.",
        "'harness.new' is in no layer.",
        "The table names no layers of the package 'harness.machine'.",
        "There is no package 'harness.lab', which the table names.",
    ]


def test_imported_init_module_without_a_layer_is_reported() -> None:
    graph = ImportGraph()
    graph.add_import(importer="harness.lab", imported="harness")

    assert list(problems(graph, {"harness": ["lab"]})) == [
        "'harness.lab' imports 'harness', but '__init__' is in no layer of 'harness'."
    ]
