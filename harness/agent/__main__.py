"""Serves a port; the loader calls `serve`, tests start the program by itself."""

from __future__ import annotations

import gc
import sys

from .port import Device
from .processes import Processes
from .server import Server
from .system import BorrowedSystem, System

#: New objects after which Python looks for cycles among them: some hundred commands.
_GARBAGE = 10_000


def serve(fd: int, digest: str, *, is_guest: bool) -> None:
    """Serve the host at the other end of `fd`.

    Only where this is the harness's own guest may a host change its clock, entropy and name.
    """
    # What is there now stays, so nobody has to look through it for garbage: a page that a clone
    # touches is a page that it has for itself.
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    system = System() if is_guest else BorrowedSystem()
    Server(Device(fd), processes=Processes(), system=system, digest=digest).serve()


def main() -> None:
    """Serve the descriptor named by the first argument, and leave this machine as it is."""
    serve(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "", is_guest=False)


if __name__ == "__main__":
    main()
