"""Reads JSON of files that other users can write: values of exactly the expected form, or ValueError."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, cast

import pydantic

from harness.gpu.passthrough import is_address, is_driver_name

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")

_LONGEST_LINE = 256
#: How much of a wrong value a message shows.
_SHOWN = 80


def _address(text: str) -> str:
    if not is_address(text):
        raise ValueError(f"'{text[:_SHOWN]}' is no PCI address")
    return text


def _driver(text: str) -> str:
    if not is_driver_name(text):
        raise ValueError(f"'{text[:_SHOWN]}' is no name of a driver")
    return text


def _one_line(text: str) -> str:
    if not text.isprintable() or len(text) > _LONGEST_LINE:
        raise ValueError(f"'{text[:_SHOWN]}' is not one printable line")
    return text


Address: TypeAlias = Annotated[str, pydantic.AfterValidator(_address)]
DriverName: TypeAlias = Annotated[str, pydantic.AfterValidator(_driver)]
Line: TypeAlias = Annotated[str, pydantic.AfterValidator(_one_line)]
#: Linux numbers processes up to 2^22, see PID_MAX_LIMIT in include/linux/threads.h.
ProcessId: TypeAlias = Annotated[int, pydantic.Field(ge=1, le=1 << 22)]


def from_json(shape: type[T], content: str | bytes) -> T:
    """Return the content as a `shape`; raises ValueError, which says in one line what is wrong."""
    adapter: pydantic.TypeAdapter[T] = _adapter(cast("Hashable", shape))
    try:
        return adapter.validate_json(content, strict=True)
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        what = problem["msg"].removeprefix("Value error, ")
        where = ".".join(map(str, problem["loc"]))[:_SHOWN]
        raise ValueError(f"{what} at '{where}'" if where else what) from None


@functools.cache
def _adapter(shape: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(shape)
