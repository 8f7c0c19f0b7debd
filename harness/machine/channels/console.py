"""The serial console, whose output a thread always reads, so that pexpect can find patterns."""

from __future__ import annotations

import codecs
import contextlib
import io
import re
import socket
import threading
from typing import TYPE_CHECKING

import pexpect
from pexpect.spawnbase import SpawnBase
from typing_extensions import override

from harness.errors import HarnessError
from harness.limits import CONSOLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from harness.provisioning.wait import Deadline

_RECEIVE_BYTES = 65536
_BACKLOG_BYTES = 64 << 20
_TAIL_BYTES = 16384
#: pexpect searches only the window at the end of its buffer. So a read must be shorter than the
#: window. Otherwise, the beginning of a long read would never be searched.
_READ_BYTES = 8192
_WINDOW = 2 * _READ_BYTES
#: Seconds between two checks of a machine that prints nothing.
_CHECK_S = 1.0
#: Indices in the list of awaited patterns. The patterns of fatal messages come after these.
_EOF, _TIMEOUT, _FIRST_FATAL = 1, 2, 3

#: Console messages after which no boot recovers.
FATAL_MESSAGES: Mapping[str, str] = {
    r"Kernel panic - not syncing[^\r\n]*": "the kernel panicked",
    r"You are in emergency mode": "systemd went into emergency mode",
    r"Give root password for maintenance": "systemd went into emergency mode",
    r"\(initramfs\)": "the initramfs found no root file system",
    r"No bootable device": "the firmware found nothing to boot",
}


if TYPE_CHECKING:
    _TextSpawn = SpawnBase[str]
else:  # pexpect's class is generic only in its type stubs.
    _TextSpawn = SpawnBase


class _SocketSpawn(_TextSpawn):
    """A pexpect spawn over a socket, from which a thread reads all the time.

    A full serial socket blocks the guest's console and with it the boot, so the thread reads even
    while no wait is active. QEMU writes the complete log, and this object stores the last 64 MiB
    of output that no wait has consumed. At the limit of a console the thread stops reading. QEMU logs
    only output that is read, so the log can't fill the disk.
    """

    def __init__(self, sock: socket.socket, name: str) -> None:
        super().__init__(
            timeout=None, maxread=_READ_BYTES, encoding="utf-8", codec_errors="replace"
        )
        self._before = io.StringIO()
        self.name = f"console of '{name}'"
        self._sock = sock
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._changed = threading.Condition()
        self._unread = bytearray()
        self._tail = bytearray()
        self._has_ended = False
        self._read_bytes = 0
        self.excess: HarnessError | None = None
        self._taps: list[Callable[[bytes], None]] = []
        self._thread = threading.Thread(target=self._drain, name=f"console-{name}", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        while True:
            try:
                chunk = self._sock.recv(_RECEIVE_BYTES)
            except OSError:
                chunk = b""
            self._read_bytes += len(chunk)
            if self._read_bytes > CONSOLE.bytes:
                self.excess = CONSOLE.error(self.name)
                chunk = b""
            with self._changed:
                self._unread += chunk
                del self._unread[:-_BACKLOG_BYTES]
                self._tail += chunk
                del self._tail[:-_TAIL_BYTES]
                self._has_ended = not chunk
                for tap in self._taps:
                    tap(chunk)
                self._changed.notify_all()
            if not chunk:
                return

    @contextlib.contextmanager
    def tapped(self, tap: Callable[[bytes], None]) -> Iterator[None]:
        with self._changed:
            if self._tail:
                tap(bytes(self._tail))
            if self._has_ended:
                tap(b"")
            self._taps.append(tap)
        try:
            yield
        finally:
            with self._changed:
                self._taps.remove(tap)

    @override
    def read_nonblocking(self, size: int = 1, timeout: float | None = None) -> str:
        limit = None if timeout is None else max(timeout, 0.0)
        self._forget_all_but_a_window()
        with self._changed:
            if not self._changed.wait_for(lambda: self._unread or self._has_ended, limit):
                raise pexpect.TIMEOUT("The console printed nothing more.")
            chunk = bytes(self._unread[:size])
            del self._unread[:size]
        if not chunk:
            self.flag_eof = True
            raise pexpect.EOF("The console is closed.")
        text: str = self._text.decode(chunk)
        return text

    def _forget_all_but_a_window(self) -> None:
        """Remove all but the last _WINDOW characters of the text that pexpect stores for `before`."""
        if self._before.tell() > 2 * _WINDOW:
            last = self._before.getvalue()[-_WINDOW:]
            self._before = io.StringIO()
            self._before.write(last)

    def tail(self) -> str:
        """Return the end of the output, even if a wait has consumed that output."""
        with self._changed:
            return self._tail.decode(errors="replace")

    def type(self, content: bytes) -> None:
        self._sock.sendall(content)

    def finish(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)


class Console:
    """A guest's serial console."""

    def __init__(self, name: str, sock: socket.socket) -> None:
        self._name = name
        self._sock = sock
        self._spawn = _SocketSpawn(sock, name)

    def wait_for(
        self,
        pattern: str,
        deadline: Deadline,
        *,
        what: str,
        failure: Callable[[], str | None] = lambda: None,
    ) -> str:
        """Wait until the guest prints text that matches the regex `pattern`. Return the match.

        The wait ends early if the guest prints a fatal message, if QEMU closes the console, or if
        `failure` returns a reason. `failure` is called every second. Raises HarnessError, with the
        console's last lines, if the wait fails.
        """
        fatal_messages = list(FATAL_MESSAGES)
        choices: list[re.Pattern[str] | type[pexpect.EOF | pexpect.TIMEOUT]] = [
            re.compile(pattern),
            pexpect.EOF,
            pexpect.TIMEOUT,
            *(re.compile(message) for message in fatal_messages),
        ]
        failed: str | None = None
        account = ""
        while True:
            index = self._spawn.expect_list(
                choices, timeout=deadline.cap(_CHECK_S), searchwindowsize=_WINDOW
            )
            failed = failure()
            if index != _TIMEOUT or failed is not None or deadline.has_passed():
                break
        if index == 0:
            matched = self._spawn.after
            assert isinstance(matched, str)  # noqa: S101 - pexpect's contract for a regex match
            return matched
        if failed is not None:
            reason = failed
        elif index == _EOF and self._spawn.excess is not None:
            reason = f"it printed too much ({str(self._spawn.excess).rstrip('.')})"
        elif index == _EOF:
            reason = "the machine ended"
        elif index == _TIMEOUT:
            reason = "the time limit passed"
            account = deadline.account()
        else:
            reason = FATAL_MESSAGES[fatal_messages[index - _FIRST_FATAL]]
        has_printed = bool(self._spawn.tail().strip())
        last = (
            f"The console's last lines:\n{self.tail()}"
            if has_printed
            else "The console printed nothing."
        )
        raise HarnessError(
            f"Machine '{self._name}' was expected to print {what} on its console, but {reason}.{account} {last}"
        )

    def type(self, content: bytes) -> None:
        """Send `content` to the guest as typed input."""
        self._spawn.type(content)

    def tapped(self, tap: Callable[[bytes], None]) -> contextlib.AbstractContextManager[None]:
        """Call `tap` with the last output, then with all later output, and with b"" at the end.

        `tap` is called in the thread that reads the console, so `tap` must not block.
        """
        return self._spawn.tapped(tap)

    def tail(self, lines: int = 20) -> str:
        """Return the last lines that the guest printed."""
        return "\n".join(self._spawn.tail().replace("\r", "").splitlines()[-lines:]) or "(nothing)"

    def close(self) -> None:
        """Close the socket and end the reader."""
        with contextlib.suppress(OSError):
            # Closing alone would not wake the reader that waits in recv().
            self._sock.shutdown(socket.SHUT_RDWR)
        self._spawn.finish(5.0)
        self._sock.close()
