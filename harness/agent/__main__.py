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
    """Answer the requests that the host sends over `fd`.

    If `is_guest` is false, the agent refuses requests to change this system's clock, entropy or
    names.
    """
    # Exclude existing objects from garbage collection: in a clone, each page that a collection
    # touches becomes a private copy.
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    system = System() if is_guest else BorrowedSystem()
    Server(PortDevice(fd), processes=Processes(), system=system, digest=digest).serve()


def main() -> None:
    """Answer requests over the descriptor whose number is the first argument; never change this system."""
    serve(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "", is_guest=False)


if __name__ == "__main__":
    main()
