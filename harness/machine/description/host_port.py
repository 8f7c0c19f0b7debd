"""The program that QEMU starts for each connection of a guest to a port of the host's loopback.

QEMU's user network can forward the connection to a character device or to a program. A character
device accepts a single connection. A program has the connection as its stdin and stdout. The program
ends when either side closes the connection, or when QEMU ends and thereby closes the program's input.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

_CHUNK = 1 << 16


def connect_argv(port: int) -> list[str]:
    """Return the command that joins its input and output to a port of the host's loopback."""
    return [sys.executable, "-I", "-S", __file__, str(port)]


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until `source` ends, then close `target` for writing. After an error, close both."""
    try:
        while chunk := source.recv(_CHUNK):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def join(guest: socket.socket, host: socket.socket) -> None:
    """Copy in both directions until both sockets have ended."""
    outward = threading.Thread(target=_copy, args=(guest, host), daemon=True)
    outward.start()
    _copy(host, guest)
    outward.join()


def main() -> None:
    # Nothing may be printed, since QEMU makes stderr part of the connection too.
    sys.stderr = sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    with socket.socket(fileno=0) as guest:
        host = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        with host:
            # QEMU may pass the guest's socket in non-blocking mode.
            for each in (guest, host):
                each.setblocking(True)
            join(guest, host)


if __name__ == "__main__":
    main()
