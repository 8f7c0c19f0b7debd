"""Renders the reference pages about code: fixtures, expectations, benchmarks."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from typing import TYPE_CHECKING

from harness import expect
from harness.bench import clone, gpu, gpu_open, shell
from harness.bench.time_to_gpu import figures
from harness.expect.every_node import NODE_EXPECTATIONS
from harness.lab.node_request import NodeRequest
from harness.reference.markdown import PACKAGE, code, page, prose, sentence, table
from harness.reference.shapes import field_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fixture:
    """A pytest fixture, read from its source code."""

    name: str
    scope: str
    docstring: str
    file: str


def fixtures() -> list[Fixture]:
    """Return every fixture in the folder `fixtures`, sorted by file."""
    return [
        Fixture(
            name=node.name,
            scope=_scope(decorator),
            docstring=ast.get_docstring(node) or "",
            file=file.relative_to(PACKAGE).as_posix(),
        )
        for file in sorted((PACKAGE / "fixtures").glob("*.py"))
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if "pytest.fixture" in ast.unparse(decorator)
    ]


def _scope(decorator: ast.expr) -> str:
    words = decorator.keywords if isinstance(decorator, ast.Call) else []
    return next(
        (ast.literal_eval(word.value) for word in words if word.arg == "scope"), "function"
    )


def fixture_page() -> str:
    found = fixtures()
    parts = [
        f"## `{file}`\n\n{docstring_of(PACKAGE / file)}\n\n"
        + table(
            ("Fixture", "Scope", "What the fixture returns"),
            (
                (code(one.name), one.scope, prose(one.docstring))
                for one in found
                if one.file == file
            ),
        )
        for file in dict.fromkeys(one.file for one in found)
    ]
    return page(
        "Fixtures",
        "The scope `session` is one pytest-xdist worker's session. How to use fixtures: "
        "[Write an e2e test](../writing-e2e-tests.md).\n",
        *parts,
        "## Fields of `NodeRequest`\n",
        f"{prose(inspect.getdoc(NodeRequest))}\n",
        table(("Field", "Default", "Meaning"), field_rows(NodeRequest)),
    )


def expectation_page() -> str:
    functions = [getattr(expect, name) for name in expect.__all__]
    modules = dict.fromkeys(function.__module__ for function in functions)
    parts = [
        f"## `{module}`\n\n{docstring_of(_file_of(module))}\n\n"
        + "\n".join(
            f"### `{name_and_parameters(function)}`\n\n{prose(inspect.getdoc(function))}\n"
            for function in functions
            if function.__module__ == module
        )
        for module in modules
    ]
    return page(
        "Expectations",
        "Each function of `harness.expect` checks evidence. If an expectation is not met, the "
        "function raises an `ExpectationError`, which names what was expected, what was found, and the "
        "folder of the evidence.\n",
        *parts,
        "## Expectations on every GPU node\n",
        "`harness node judge` and `suites/node` check these expectations: "
        "[Judge an existing node](../existing-nodes.md).\n",
        table(("Name", "What is expected"), ((code(e.name), e.words) for e in NODE_EXPECTATIONS)),
    )


def name_and_parameters(function: Callable[..., object]) -> str:
    parameters = [
        str(parameter.replace(annotation=parameter.empty)).replace(" ", "")
        for parameter in inspect.signature(function).parameters.values()
    ]
    return f"{function.__name__}({', '.join(parameters)})"


def benchmark_page() -> str:
    measured = {
        "harness bench clone": clone.MEASURES,
        "harness bench gpu": gpu.GPU_MEASURES,
        "harness bench gpu --open": gpu_open.MEASURES,
        "harness bench shell": shell.FIGURES,
        "harness bench time-to-gpu": figures.MEASURES,
    }
    parts = [
        f"## `{command}`\n\n"
        + table(("Measure", "Meaning"), ((code(n), sentence(w)) for n, w in measures.items()))
        for command, measures in measured.items()
    ]
    return page(
        "Benchmarks",
        "Figures are medians of several runs, also in the output of `--json`.\n",
        *parts,
    )


def _file_of(module: str) -> Path:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def docstring_of(file: Path) -> str:
    """Return the docstring of a module's file as Markdown."""
    return prose(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))))
