"""A watchdog that gives some calls up at once, and the calls that it left behind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol, TypeVar

from harness.machine.libvirt.watchdog import watched

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SHORT_S = 0.01


class Watched(Protocol):
    """What `watched` is."""

    def __call__(
        self,
        what: str,
        call: Callable[[], T],
        limit_s: float,
        *,
        late: Callable[[T], object] | None = None,
    ) -> T: ...


def hasty(prefix: str) -> Watched:
    """Return a watchdog that has hardly any patience with calls whose name begins so."""

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
    """Wait until the calls whose name begins so have done all that they do."""
    for thread in threading.enumerate():
        if thread.name.startswith(f"libvirt: {prefix}"):
            thread.join(patience_s)
            assert not thread.is_alive(), f"'{thread.name}' was expected to end."
