"""A watchdog with a very short limit for some calls, and a wait for these calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol, TypeVar

from harness.machine.libvirt.watchdog import watched

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SHORT_S = 0.01


class Watched(Protocol):
    """The type of `watched`."""

    def __call__(
        self,
        what: str,
        call: Callable[[], T],
        limit_s: float,
        *,
        late: Callable[[T], object] | None = None,
    ) -> T: ...


def hasty(prefix: str) -> Watched:
    """Return a watchdog with a very short limit for calls whose name begins with `prefix`."""

    def watch(
        what: str,
        call: Callable[[], T],
        limit_s: float,
        *,
        late: Callable[[T], object] | None = None,
    ) -> T:
        return watched(what, call, _SHORT_S if what.startswith(prefix) else limit_s, late=late)

    return watch


def join_late(prefix: str, patience_s: float) -> None:
    """Wait until the threads of calls whose name begins with `prefix` have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith(f"libvirt: {prefix}"):
            thread.join(patience_s)
            assert not thread.is_alive(), f"'{thread.name}' was expected to end."
