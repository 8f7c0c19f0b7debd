"""An event loop for one thread, with descriptors, timers and deferred calls."""

from __future__ import annotations

import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READABLE = select.POLLIN
WRITABLE = select.POLLOUT

#: The owner of callbacks that belong to no request.
NOBODY = 0
#: The longest single wait in seconds. poll accepts no timeout of more than a few weeks.
_LONGEST_S = 3600.0


class Loop:
    """Calls functions when descriptors are ready and when timers expire.

    The loop uses poll directly, because each layer above poll costs time in an emulated guest.
    epoll would need more system calls, because the loop's few descriptors are often added and
    removed.

    A callback belongs to the request that was the loop's `owner` when the callback was registered.
    While a callback runs, the loop's `owner` is the callback's request. If a callback raises an
    exception, the loop passes the callback's owner and the exception to `on_error`, and continues
    with the other callbacks.
    """

    def __init__(self, on_error: Callable[[int, Exception], None]) -> None:
        self.owner = NOBODY
        self._on_error = on_error
        self._poll = select.poll()
        self._callbacks: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._timers: dict[int, tuple[float, int, Callable[[], None]]] = {}
        self._next_timer = 0
        self._soon: list[tuple[int, Callable[[], None]]] = []

    def add(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        self._poll.register(fd, events)
        self._callbacks[fd] = (self.owner, callback)

    def change(self, fd: int, events: int) -> None:
        self._poll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Remove `fd`, if it is registered."""
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> int:
        """Call `callback` once, after `seconds`. Return the timer's id, which `cancel_timer` accepts."""
        self._next_timer += 1
        self._timers[self._next_timer] = (time.monotonic() + seconds, self.owner, callback)
        return self._next_timer

    def cancel_timer(self, timer: int) -> None:
        self._timers.pop(timer, None)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the loop's next round. A round with such a callback does not wait for events."""
        self._soon.append((self.owner, callback))

    def run_once(self, limit_s: float | None = None) -> None:
        """Run one round: wait at most `limit_s` seconds for events and timers, and call their callbacks."""
        timeout = _LONGEST_S if limit_s is None else limit_s
        if self._soon:
            timeout = 0.0
        elif self._timers:
            left = max(0.0, min(self._timers.values(), key=_when)[0] - time.monotonic())
            timeout = min(left, timeout)
        for fd, events in self._poll.poll(timeout * 1000):
            # A callback of this round may have removed the descriptor.
            entry = self._callbacks.get(fd)
            if entry is not None:
                self.owner, callback = entry
                try:
                    callback(events)
                except Exception as error:
                    self._report(error, fd, entry)
        if self._timers:
            now = time.monotonic()
            for timer in [timer for timer, (when, _, _) in self._timers.items() if when <= now]:
                due = self._timers.pop(timer, None)
                if due is not None:
                    self._call(due[1], due[2])
        if self._soon:
            soon, self._soon = self._soon, []
            for owner, call in soon:
                self._call(owner, call)
        self.owner = NOBODY

    def _call(self, owner: int, callback: Callable[[], None]) -> None:
        self.owner = owner
        try:
            callback()
        except Exception as error:
            self._on_error(owner, error)

    def _report(self, error: Exception, fd: int, entry: tuple[int, Callable[[int], None]]) -> None:
        owner = entry[0]
        self._on_error(owner, error)
        if owner != NOBODY and self._callbacks.get(fd) is entry:
            # Otherwise poll would report the descriptor, which is still registered, in every
            # round.
            self.remove(fd)


def _when(timer: tuple[float, int, Callable[[], None]]) -> float:
    return timer[0]
