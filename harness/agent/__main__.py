"""Starts the agent: the loader in a guest calls `serve`, and tests run this module."""

from __future__ import annotations

import gc
import sys

from .port import PortDevice
from .processes import Processes
from .server import Server
from .system import BorrowedSystem, System

#: Python collects garbage after this many new objects. Several hundred commands create 10,000.
_GARBAGE = 10_000


def serve(fd: int, digest: str, *, is_guest: bool) -> None:
    """Serve the host at the other end of `fd`.

    The host may change the clock, entropy and name of this system only if the system is a guest.
    """
    # Exclude existing objects from garbage collection: in a clone, each page that a collection
    # touches becomes a private copy.
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    system = System() if is_guest else BorrowedSystem()
    Server(PortDevice(fd), processes=Processes(), system=system, digest=digest).serve()


def main() -> None:
    """Serve the host over the descriptor in the first argument, without changing this system."""
    serve(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "", is_guest=False)


if __name__ == "__main__":
    main()
