"""Waits for states of systemd units, and queries a unit's state again when systemd sends a signal."""

from __future__ import annotations

import os
import time

from .commands import CapturedOutput, Command
from .jobs import Job
from .loop import READABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from .jobs import Answers

#: systemd sends its signals to every connection of this socket, without a subscription
#: (bus_foreach_bus() in its src/core/dbus.c). Only root may connect.
PRIVATE_SOCKET = "/run/systemd/private"
_ASK_S = 20.0
#: Seconds between two queries while systemd sends no signal: `_QUIET_S` with a connection to
#: systemd, `_BLIND_S` without a connection.
_QUIET_S = 5.0
_BLIND_S = 0.5
#: Minimum seconds between two queries. A query itself makes systemd send signals, so the gap grows
#: while nothing changes.
_FIRST_GAP_S = 0.05
_LAST_GAP_S = 0.8
_PROPERTIES = ("ActiveState", "SubState", "Result", "LoadState")


class UnitWait(Job):
    """Waits until a unit is in the state `wanted`, or has failed."""

    def __init__(
        self,
        answers: Answers,
        request: int,
        unit: str,
        wanted: str,
        private_socket: str | None = None,
    ) -> None:
        super().__init__(answers, request)
        self._unit = unit
        self._wanted = wanted
        self._query: Command | None = None
        self._has_signal = False
        self._seen: dict[str, str] = {}
        self._has_asked = False
        self._gap_s = _FIRST_GAP_S
        self._timer = 0
        self._due = 0.0
        self._socket: socket.socket | None = None
        self._is_over = False
        if self._connect(private_socket or PRIVATE_SOCKET):
            # systemd sends the first signal when it has accepted the connection. Later changes
            # cause more signals, so a query after the first signal misses no change.
            self._ask_after(_BLIND_S)
        else:
            self._ask()

    def _connect(self, path: str) -> bool:
        import socket  # noqa: PLC0415 - a slow import that only this method needs

        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            connection.setblocking(False)
            uid = str(os.getuid()).encode().hex()
            connection.sendall(f"\0AUTH EXTERNAL {uid}\r\nBEGIN\r\n".encode())
        except OSError:
            connection.close()
            return False
        self._socket = connection
        self.answers.loop.add(connection.fileno(), READABLE, self._on_signal)
        return True

    def _on_signal(self, _events: int) -> None:
        if self._socket is None:
            return
        try:
            words = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if not words:
            # systemd may have re-executed itself.
            self._disconnect()
            self._gap_s = _BLIND_S
        self._has_signal = True
        gap_s = self._gap_s if self._has_asked else 0.0
        # A planned query is never postponed. Otherwise the signals of a busy systemd could delay
        # the query forever.
        if self._query is None and time.monotonic() + gap_s < self._due:
            self._ask_after(gap_s)

    def _ask_after(self, seconds: float) -> None:
        self.answers.loop.cancel_timer(self._timer)
        self._due = time.monotonic() + seconds
        self._timer = self.answers.loop.call_later(seconds, self._ask)

    def _ask(self) -> None:
        if self._query is not None or self._is_over:
            return
        self.answers.loop.cancel_timer(self._timer)
        self._has_signal = False
        self._has_asked = True
        argv = ["systemctl", "show", f"--property={','.join(_PROPERTIES)}", "--", self._unit]
        try:
            query = Command(
                self.answers.loop,
                self.answers.processes,
                CapturedOutput(self._on_answer),
                argv,
                env={"SYSTEMD_PAGER": "", "LC_ALL": "C"},
                limit_s=_ASK_S,
                stdin=None,
            )
        except OSError:
            # The guest lacks the memory for a process. Try again later.
            self._ask_after(_BLIND_S)
            return
        if query.is_running:
            self._query = query

    def _on_answer(self, exit_code: int, stdout: bytes) -> None:
        self._query = None
        if self._is_over:
            return
        if exit_code == 127:
            self.fail(OSError("There is no 'systemctl' on this system"))
            return
        lines = stdout.decode(errors="replace").splitlines()
        seen = {name: value for name, mark, value in (line.partition("=") for line in lines)}
        active = seen.get("ActiveState")
        if exit_code == 0 and active in {self._wanted, "failed"}:
            self.finish(self._progress(seen))
            return
        changed = seen != self._seen
        self._gap_s = _FIRST_GAP_S if changed else min(2 * self._gap_s, _LAST_GAP_S)
        self._seen = seen
        if exit_code != 0:
            self.report_progress({"trouble": f"systemctl ended with exit code {exit_code}"})
        elif changed:
            self.report_progress(self._progress(seen))
        if self._socket is None:
            self._ask_after(_BLIND_S)
        else:
            self._ask_after(self._gap_s if self._has_signal else _QUIET_S)

    def _progress(self, seen: dict[str, str]) -> dict[str, object]:
        return {name: seen.get(name, "") for name in _PROPERTIES}

    def _disconnect(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            self.answers.loop.remove(connection.fileno())
            connection.close()

    def drop(self) -> None:
        self._is_over = True
        self.answers.loop.cancel_timer(self._timer)
        self._disconnect()
        query, self._query = self._query, None
        if query is not None:
            query.kill()
