"""Context managers of fakes, which end only at their exit."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
T = TypeVar("T")


def kept_alive(
    make: Callable[P, Iterator[T]],
) -> Callable[P, contextlib.AbstractContextManager[T]]:
    """Make context managers as `contextmanager` does, but keep a reference to each of them.

    Otherwise garbage collection ends a context that the code under test forgot to exit.
    """
    manager = contextlib.contextmanager(make)
    alive: list[contextlib.AbstractContextManager[T]] = []

    @functools.wraps(make)
    def enter(*args: P.args, **kwargs: P.kwargs) -> contextlib.AbstractContextManager[T]:
        alive.append(manager(*args, **kwargs))
        return alive[-1]

    return enter
