"""libvirt's own event loop, in one thread of this process.

Connections need it for keep-alive and for events. libvirt has one loop per process and can't remove
it, so the thread lives as long as the process; without events it sleeps in poll(2).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import Any

from harness.errors import HarnessError

_LOG = logging.getLogger(__name__)
_JOIN_S = 5.0


class EventLoop:
    """The loop of one process; `start` comes before the first connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._ending = False

    def start(self, libvirt: Any) -> None:
        """Start the thread where it does not run yet.

        Raises HarnessError in a fork of the process that has the thread.
        """
        with self._lock:
            if self._owner is None:
                self._begin(libvirt)
                self._owner = os.getpid()
        if self._owner != os.getpid():
            raise HarnessError(
                f"libvirt was started in process {self._owner}, of which this one is a fork, and "
                "libvirt can't be used in both; open the connection in the process that uses it."
            )

    def _begin(self, libvirt: Any) -> None:
        libvirt.virEventRegisterDefaultImpl()
        # A timer that never fires by itself: the way to wake the loop.
        timer = libvirt.virEventAddTimeout(-1, _wake, None)
        thread = threading.Thread(
            target=self._turn, args=(libvirt,), name="libvirt-events", daemon=True
        )
        thread.start()

        def end() -> None:
            # A thread that Python ends inside a callback would keep libvirt's locks.
            if self._owner == os.getpid():
                self._ending = True
                libvirt.virEventUpdateTimeout(timer, 0)
                thread.join(_JOIN_S)

        atexit.register(end)

    def _turn(self, libvirt: Any) -> None:
        try:
            while not self._ending:
                libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError:
            _LOG.exception("libvirt's event loop ended; no further event will be received")


def _wake(_timer: int, _opaque: object) -> None:
    """Do nothing: the timer only wakes the loop."""


#: The one loop that libvirt allows.
EVENT_LOOP = EventLoop()
