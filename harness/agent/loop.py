"""One thread's events: descriptors, times, and work that goes on while there is room."""

from __future__ import annotations

import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
HANG_UP = select.EPOLLHUP


class Loop:
    """Calls back. Epoll itself, since every layer above it costs an emulated guest time."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: dict[int, tuple[float, Callable[[], None]]] = {}
        self._next_timer = 0
        self._soon: list[Callable[[], None]] = []

    def add(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def change(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Forget `fd`, where it is known."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> int:
        """Call back once; returns what `cancel_timer` takes."""
        self._next_timer += 1
        self._timers[self._next_timer] = (time.monotonic() + seconds, callback)
        return self._next_timer

    def cancel_timer(self, timer: int) -> None:
        self._timers.pop(timer, None)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next round, which then does not wait."""
        self._soon.append(callback)

    def run_once(self, limit_s: float | None = None) -> None:
        """Wait for one round of events, `limit_s` at most, and call back."""
        timeout = limit_s
        if self._soon:
            timeout = 0.0
        elif self._timers:
            left = max(0.0, min(self._timers.values(), key=_when)[0] - time.monotonic())
            timeout = left if timeout is None else min(left, timeout)
        for fd, events in self._epoll.poll(timeout):
            # One callback of this round may have ended another's descriptor.
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback(events)
        if self._timers:
            now = time.monotonic()
            for timer in [timer for timer, (when, _) in self._timers.items() if when <= now]:
                entry = self._timers.pop(timer, None)
                if entry is not None:
                    entry[1]()
        if self._soon:
            soon, self._soon = self._soon, []
            for call in soon:
                call()

    def close(self) -> None:
        self._epoll.close()


def _when(timer: tuple[float, Callable[[], None]]) -> float:
    return timer[0]
