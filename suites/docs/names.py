"""Checks names in prose: a code span that looks like a name of this repository must exist."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

from harness import expect
from harness.lab import Lab
from harness.lab.node import Node

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from suites.docs.pages import Span

_DOTTED = re.compile(r"harness(?:\.\w+)+")
_MEMBER = re.compile(r"(expect|lab|node)\.(\w+)")
_PATH = re.compile(r"(?:changelog|docs|fixtures|harness|images|suites)/[\w./*-]*")
_OPTION = re.compile(r"--[\w-]+")

#: The names that pages use for objects of fixtures and of `harness.expect`.
_OWNERS: dict[str, object] = {"expect": expect, "lab": Lab, "node": Node}


def check_name(span: Span, *, repository: Path, options: Collection[str]) -> None:
    """Raise an error for a module, a member, a path or an option that does not exist."""
    if _DOTTED.fullmatch(span.text):
        _check_dotted(span)
    elif found := _MEMBER.match(span.text):
        owner, name = found.groups()
        if not hasattr(_OWNERS[owner], name):
            raise span.place.refuse(f"'{owner}' has no '{name}'.")
    elif _PATH.fullmatch(span.text):
        name = span.text.rstrip("/")
        if not any(repository.glob(name)) and not (repository / f"{name}.py").exists():
            raise span.place.refuse(f"There is nothing at '{span.text}'.")
    elif (found := _OPTION.match(span.text)) and found[0] not in options:
        raise span.place.refuse(f"Neither our programs nor a checked command know '{found[0]}'.")


def _check_dotted(span: Span) -> None:
    """Import the modules of a dotted name, then look up the members after them."""
    package, *rest = span.text.split(".")
    found: object = importlib.import_module(package)
    path = package
    for name in rest:
        path = f"{path}.{name}"
        try:
            found = getattr(found, name)
        except AttributeError:
            try:
                found = importlib.import_module(path)
            except ImportError as error:
                raise span.place.refuse(f"There is no '{path}'.") from error
