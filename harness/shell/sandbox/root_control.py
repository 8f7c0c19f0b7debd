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

    `throwaway_root.py` inherits the other end of the socket, `other_end`. Each request and each
    answer on the socket is one line. Call `close` when the socket is no longer needed.
    """

    def __init__(self) -> None:
        self._socket, self.other_end = socket.socketpair()
        self._received = b""

    def close_other_end(self) -> None:
        """Close `other_end` in this process, so that the socket closes when `throwaway_root.py` ends."""
        self.other_end.close()

    @functools.cached_property
    def first_process(self) -> int:
        """Return the PID, in this process's PID namespace, of the first process in the throw-away root."""
        return int(self._next_line())

    def renew(self) -> None:
        """Replace the throw-away root by a new root, in which all changes since the first `renew` are undone.

        All processes whose root directory is the old root get the new root; processes with another
        root directory must have ended. Raises HarnessError if the root can't be replaced.
        """
        self._request("renew")

    def fake(self, path: Path) -> None:
        """Mount a writable replacement over a directory or file of `/sys` or `/proc`.

        The next `renew` removes the replacement.
        """
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
