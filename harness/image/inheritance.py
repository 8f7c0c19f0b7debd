"""Merges a recipe with the recipe that its key `extends` names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pydantic

from harness.datafile import extended, read_document
from harness.errors import listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.datafile import Document

_SUFFIX = ".yaml"


@dataclass(frozen=True, kw_only=True)
class _Head:
    """The keys that decide how a recipe is read. The class of each kind validates all other keys."""

    __pydantic_config__ = pydantic.ConfigDict(extra="ignore")

    schema: Literal[1] | None = None
    kind: Literal["build", "url", "file"] | None = None
    extends: str | None = None
    replace: tuple[str, ...] = ()


def read_merged(
    file: Path, recipes: Mapping[str, Path], *, extended_by: Sequence[Path] = ()
) -> Document:
    """Read a recipe, and merge it with the recipes that it extends. `recipes` resolves names.

    Raises BadInputError if an extended recipe is unknown or of another kind, or if a recipe
    extends itself. The error names the file and the key.
    """
    own = read_document(file)
    head = own.to_shape(_Head)
    if head.extends is None:
        if head.replace:
            raise own.refusal(
                "This key is allowed only in a recipe that has 'extends', whose lists it replaces; remove "
                "this key.",
                ("replace",),
            )
        return own
    if head.schema is None:
        raise own.refusal("This key is missing; write 'schema: 1'.", ("schema",))
    for index, name in enumerate(head.replace):
        if not isinstance(own.data.get(name), list):
            raise own.refusal(
                f"This recipe has no list '{name}' that could replace the list '{name}' of "
                f"'{head.extends}'; add the list to this recipe, or remove its name here.",
                ("replace", index),
            )
    base_file = _base_of(own, head.extends, recipes)
    chain = (*extended_by, file)
    if any(base_file.samefile(each) for each in chain):
        circle = " -> ".join(f"'{each.stem}'" for each in (*chain, base_file))
        raise own.refusal(f"The recipe extends itself: {circle}.", ("extends",))
    base = read_merged(base_file, recipes, extended_by=chain)
    if head.kind is not None and head.kind != base.data.get("kind"):
        raise own.refusal(
            f"The recipe '{head.extends}' is of kind '{base.data.get('kind')}', and a recipe that "
            "extends another recipe must have the same kind; remove the key 'kind'.",
            ("kind",),
        )
    return extended(base, own, replaced=head.replace)


def _base_of(own: Document, name: str, recipes: Mapping[str, Path]) -> Path:
    if "/" in name or name.endswith(_SUFFIX):
        path = own.file.parent / name
        if not path.is_file():
            raise own.refusal(
                f"There is no file '{path}'; give a path relative to this file.", ("extends",)
            )
        return path
    if name not in recipes:
        raise own.refusal(
            f"There is no recipe '{name}'; the known recipes are {listed(recipes)}. To extend "
            "another file, give a path with a '/', such as './base.yaml'.",
            ("extends",),
        )
    return recipes[name]
