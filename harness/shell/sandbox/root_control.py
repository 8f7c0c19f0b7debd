"""Replaces the throw-away root of a running shell."""

from __future__ import annotations

import functools
import socket
import time
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from pathlib import Path

_ANSWER_S = 30.0


class RootControl:
    """The harness's end of the socket on which `throwaway_root.py` accepts requests.

    The program inherits `other_end`. Requests and answers are lines. Call `close` at the end.
    """

    def __init__(self) -> None:
        self._socket, self.other_end = socket.socketpair()
        self._received = b""

    def close_other_end(self) -> None:
        """Close this process's `other_end`, so that the socket closes when the program ends."""
        self.other_end.close()

    @functools.cached_property
    def first_process(self) -> int:
        """Return the PID that the throw-away root's first process has in this PID namespace."""
        return int(self._next_line())

    def renew(self) -> None:
        """Replace the root by a root that contains only the files written before the first `renew`.

        All processes whose root directory is the old root get the new root; processes with another
        root directory must have ended. Raises HarnessError if the root can't be replaced.
        """
        self._request("renew")

    def fake(self, path: Path) -> None:
        """Mount a writable copy over a directory or file of `/sys` or `/proc`, until `renew`."""
        self._request(f"fake {path}")

    def _request(self, line: str) -> None:
        if "\n" in line:
            raise HarnessError(
                f"The throw-away root can't do '{line}': the request has more than one line."
            )
        _ = self.first_process  # reads the program's first line, which is a PID and not an answer
        self._socket.sendall(f"{line}\n".encode())
        answer = self._next_line()
        if answer != "done":
            raise HarnessError(f"The throw-away root can't do '{line}': {answer}.")

    def _next_line(self) -> str:
        deadline = time.monotonic() + _ANSWER_S
        while b"\n" not in self._received:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._socket.recv(4096)
            except (TimeoutError, ConnectionError) as error:
                raise HarnessError(f"The throw-away root does not answer: {error}.") from None
            if not data:
                raise HarnessError("The throw-away root does not answer: it has ended.")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line.decode(errors="replace")

    def close(self) -> None:
        """Close both ends of the socket."""
        self._socket.close()
        self.other_end.close()
