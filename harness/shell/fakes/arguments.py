"""Checks the arguments of fakes' constructors against the type annotations of the parameters."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

_Constructor = TypeVar("_Constructor", bound="Callable[..., None]")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
}
_WORDS = {"str": "a text", "bool": "True or False", "int": "a number", "float": "a number"}
_LIST = re.compile(r"(?:Iterable|Sequence)\[(\w+)\]")
_MAPPING = re.compile(r"Mapping\[str, (\w+)\]")


def checks_arguments(constructor: _Constructor) -> _Constructor:
    """Make a constructor raise BadInputError for an argument that does not have the declared type."""
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def checked(self: object, *args: object, **kwargs: object) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        for name, value in list(given.items())[1:]:
            _check(self, name, value, str(signature.parameters[name].annotation), constructor)
        constructor(self, *args, **kwargs)

    return cast("_Constructor", checked)


def check_fields(instance: DataclassInstance) -> None:
    """Raise BadInputError for a field of a dataclass that does not have the declared type."""
    for field in fields(instance):
        value = getattr(instance, field.name)
        _check(instance, field.name, value, str(field.type), type(instance).__init__)


def check_texts(values: Mapping[str, object], *, source: str) -> None:
    """Raise BadInputError for a value that is not text."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise _unexpected(value, "a text", source=source, key=name)


def _check(
    owner: object, name: str, value: object, annotation: str, constructor: Callable[..., object]
) -> None:
    expected = _expected(value, annotation, getattr(constructor, "__globals__", {}))
    if expected is not None:
        raise _unexpected(value, expected, source=f"fakes.{type(owner).__name__}", key=name)


def _unexpected(value: object, expected: str, *, source: str, key: str) -> BadInputError:
    shown = f"'{value}'" if isinstance(value, str) else f"of type {type(value).__name__}"
    message = f"The value is {shown}, but {expected} was expected."
    return BadInputError(message, source=source, key=key)


def _expected(value: object, annotation: str, known: Mapping[str, Any]) -> str | None:
    """Return the expected kind of value, or None if `value` fits or the annotation is not known."""
    plain = annotation.removesuffix(" | None")
    if value is None and plain != annotation:
        return None
    listed, mapped = _LIST.fullmatch(plain), _MAPPING.fullmatch(plain)
    if listed:
        is_list = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
        # an iterator can be read only once, so its items are not checked
        items = value if isinstance(value, Collection) else ()
        fits = is_list and all(_is_a(item, listed[1], known) for item in items)
        return None if fits else f"a list (each item: {_named(listed[1])})"
    if mapped:
        fits = isinstance(value, Mapping) and all(
            isinstance(key, str) and _is_a(item, mapped[1], known) for key, item in value.items()
        )
        return None if fits else f"a mapping (each value: {_named(mapped[1])})"
    return None if _is_a(value, plain, known) else _named(plain)


def _is_a(value: object, name: str, known: Mapping[str, Any]) -> bool:
    kinds: Sequence[type] = _KINDS.get(name, ())
    if not kinds and isinstance(known.get(name), type):
        kinds = (known[name],)
    if isinstance(value, bool) and bool not in kinds:
        return not kinds
    return not kinds or isinstance(value, tuple(kinds))


def _named(name: str) -> str:
    return _WORDS.get(name, f"a fakes.{name}")
