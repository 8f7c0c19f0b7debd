"""Reads the fields of data classes: each field's default, and the docstring below the field."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.reference.markdown import PACKAGE, code, prose

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def member_docstrings(owner: type) -> dict[str, str]:
    """Return the docstrings below the members of a class, by the member's name."""
    found: dict[str, str] = {}
    name = ""
    for node in _classes(sys.modules[owner.__module__])[owner.__name__].body:
        if isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
        elif isinstance(node, ast.AnnAssign):
            name = ast.unparse(node.target)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = inspect.cleandoc(str(node.value.value))
            name = ""
        else:
            name = ""
    return found


@functools.cache
def _classes(module: ModuleType) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by name.

    The result is cached, since a page shows many classes of one module.
    """
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def field_rows(shape: type) -> list[tuple[str, str, str]]:
    """Return name, default and docstring of each field of a dataclass."""
    words = member_docstrings(shape)
    return [
        (code(field.name), default_of(field), prose(words.get(field.name)))
        for field in dataclasses.fields(shape)
    ]


def data_file_keys(shape: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each key of a data file with its default and docstring; a nested key is written `outer.inner`."""
    words = member_docstrings(shape)
    for field in dataclasses.fields(shape):
        inner = _shape_within(shape, str(field.type))
        if inner is None:
            yield code(f"{prefix}{field.name}"), default_of(field), prose(words.get(field.name))
        else:
            brackets = "[]" if str(field.type).startswith(("tuple", "Annotated[tuple")) else ""
            yield from data_file_keys(inner, f"{prefix}{field.name}{brackets}.")


def _shape_within(shape: type, annotation: str) -> type | None:
    namespace = vars(inspect.getmodule(shape))
    for word in re.findall(r"\w+", annotation):
        found = namespace.get(word)
        # A validator of pydantic is a dataclass too, but does not describe a data file.
        if (
            inspect.isclass(found)
            and found.__module__.startswith("harness.")
            and dataclasses.is_dataclass(found)
        ):
            return found
    return None


def default_of(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return show_default(field.default_factory())
    return "required" if field.default is dataclasses.MISSING else show_default(field.default)


def show_default(value: object) -> str:
    """Return the text by which tables show a default value."""
    if value is None or value in ((), {}, [], ""):
        return "none"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple):
        return ", ".join(code(str(one)) for one in value)
    if isinstance(value, Path) and value.is_relative_to(PACKAGE.parent):
        value = value.relative_to(PACKAGE.parent)
    return code(f"{value:g}" if isinstance(value, float) else str(getattr(value, "value", value)))
