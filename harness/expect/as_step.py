"""Makes each call of an expectation a step of the report; the step's title shows the call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from harness.steps import is_followed, take_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import ParamSpec

    _P = ParamSpec("_P")

_R = TypeVar("_R")
_SHOWN_CHARACTERS = 60


def as_step(name: str, expectation: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap an expectation so that each call is a step; the step's title omits the first argument."""

    @functools.wraps(expectation)
    def expected(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not is_followed():
            return expectation(*args, **kwargs)
        words = [
            *map(_shown, args[1:]),
            *(f"{key}={_shown(value)}" for key, value in kwargs.items()),
        ]
        with take_step(f"expect.{name}({', '.join(words)})"):
            return expectation(*args, **kwargs)

    return expected


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
