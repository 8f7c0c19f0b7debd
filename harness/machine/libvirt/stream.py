"""Connects a libvirt stream to a socket, because the code of consoles and agents expects a socket.

libvirt's event loop transfers data between the stream and the socket. The event loop reads either
end only as fast as the other end accepts data, so a guest that writes without end can't fill the
memory.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.watchdog import LibvirtHangsError, watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.machine.libvirt.connection import Connection

_CHUNK_BYTES = 65536
_MOST_BYTES = 1 << 20
_CLOSE_S = 5.0
#: The time limit of an abort, in seconds. An abort has a shorter limit than `close`, so that `close`
#: still waits when the limit of the abort passes.
_ABORT_S = 3.0
#: The return value of libvirt's Python binding when a call would block.
_WOULD_BLOCK = -2

_LOG = logging.getLogger(__name__)


class StreamSocket:
    """A stream that `attach` connects, and the socket `ours`, which carries the stream's data.

    Received data is also written to the new file `log`, until writing fails.
    """

    def __init__(
        self,
        connection: Connection,
        what: str,
        attach: Callable[[Any], object],
        *,
        log: Path | None = None,
    ) -> None:
        self._libvirt = load_libvirt()
        self._what = what
        self._log: BinaryIO | None = None
        self._log_failure: str | None = None
        self._to_socket = bytearray()
        self._to_stream = bytearray()
        self._interests: tuple[int, int] | None = None
        self._has_ended = threading.Event()
        self._stream: Any = None
        self._is_open = False
        self._watch = -1
        self.ours, self._theirs = socket.socketpair()
        try:
            self._theirs.setblocking(False)
            self._stream = connection.raw.newStream(self._libvirt.VIR_STREAM_NONBLOCK)
            if log is not None:
                self._log = log.open("wb")
            connection.run(
                f"the opening of {what}", lambda: attach(self._stream), late=self._abort
            )
            self._is_open = True
            self._watch = self._libvirt.virEventAddHandle(
                self._theirs.fileno(), 0, self._on_socket, None
            )
            self._stream.eventAddCallback(
                self._libvirt.VIR_STREAM_EVENT_READABLE, self._on_stream, None
            )
            self._update()
        except BaseException:
            self._end()
            self.ours.close()
            raise

    def close(self) -> None:
        """Close the stream and `ours`."""
        with contextlib.suppress(OSError):
            # The loop sees the end of the socket, and closes the stream.
            self.ours.shutdown(socket.SHUT_RDWR)
        if not self._has_ended.wait(_CLOSE_S):
            _LOG.warning("libvirt's event loop did not close %s", self._what)
        self.ours.close()

    def failure(self) -> str | None:
        """Return why received data is no longer written to the log, or None."""
        return self._log_failure

    def _on_stream(self, _stream: object, events: int, _opaque: object) -> None:
        libvirt = self._libvirt
        try:
            if events & libvirt.VIR_STREAM_EVENT_WRITABLE:
                self._send()
            # Data that arrived before a hang-up can still be read.
            if not self._receive():
                self._end()
                return
            if events & (libvirt.VIR_STREAM_EVENT_ERROR | libvirt.VIR_STREAM_EVENT_HANGUP):
                while self._to_socket and self._flush():
                    pass
                self._end()
                return
            self._update()
        except (libvirt.libvirtError, OSError) as error:
            _LOG.debug("%s ended: %s", self._what, error)
            self._end()

    def _on_socket(self, _watch: int, _fd: int, events: int, _opaque: object) -> None:
        libvirt = self._libvirt
        try:
            if events & libvirt.VIR_EVENT_HANDLE_WRITABLE:
                self._flush()
            if events & (libvirt.VIR_EVENT_HANDLE_READABLE | libvirt.VIR_EVENT_HANDLE_HANGUP):
                chunk = self._theirs.recv(_CHUNK_BYTES)
                if not chunk:
                    self._end()
                    return
                self._to_stream += chunk
                self._send()
            self._update()
        except (libvirt.libvirtError, OSError) as error:
            _LOG.debug("%s ended: %s", self._what, error)
            self._end()

    def _receive(self) -> bool:
        """Read the stream's available data. Return whether more data may follow."""
        while len(self._to_socket) < _MOST_BYTES:
            chunk = self._stream.recv(_CHUNK_BYTES)
            if chunk == _WOULD_BLOCK:
                return True
            if not chunk:
                return False
            self._note(chunk)
            self._to_socket += chunk
            self._flush()
        return True

    def _note(self, chunk: bytes) -> None:
        """Write to the log. If that fails, the guest continues, and `failure` returns the reason."""
        if self._log is None:
            return
        try:
            self._log.write(chunk)
            self._log.flush()
        except OSError as error:
            self._log_failure = (
                f"the log of {self._what} could not be written ({error.strerror}); free space on "
                f"the file system of '{Path(self._log.name).parent}'"
            )
            _LOG.warning("%s", self._log_failure)
            self._close_log()

    def _close_log(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            # Closing flushes the buffer, which may fail again. The file is closed in any case.
            with contextlib.suppress(OSError):
                log.close()

    def _flush(self) -> bool:
        """Send as much as the socket accepts. Return whether the socket accepted anything."""
        try:
            sent = self._theirs.send(self._to_socket)
        except BlockingIOError:
            return False
        del self._to_socket[:sent]
        return True

    def _send(self) -> None:
        while self._to_stream:
            sent = self._stream.send(bytes(self._to_stream[:_CHUNK_BYTES]))
            if sent == _WOULD_BLOCK:
                return
            del self._to_stream[:sent]

    def _update(self) -> None:
        """Select the events of both ends for which the event loop waits."""
        if self._has_ended.is_set():
            return
        libvirt = self._libvirt
        of_stream = libvirt.VIR_STREAM_EVENT_ERROR | libvirt.VIR_STREAM_EVENT_HANGUP
        of_socket = libvirt.VIR_EVENT_HANDLE_HANGUP
        if len(self._to_socket) < _MOST_BYTES:
            of_stream |= libvirt.VIR_STREAM_EVENT_READABLE
        if self._to_stream:
            of_stream |= libvirt.VIR_STREAM_EVENT_WRITABLE
        if len(self._to_stream) < _MOST_BYTES:
            of_socket |= libvirt.VIR_EVENT_HANDLE_READABLE
        if self._to_socket:
            of_socket |= libvirt.VIR_EVENT_HANDLE_WRITABLE
        if self._interests != (of_stream, of_socket):
            self._stream.eventUpdateCallback(of_stream)
            libvirt.virEventUpdateHandle(self._watch, of_socket)
            self._interests = of_stream, of_socket

    def _end(self) -> None:
        """Close both ends, in the loop's thread or before the loop watches the ends."""
        if self._has_ended.is_set():
            return
        refused = self._libvirt.libvirtError
        try:
            if self._watch >= 0:
                with contextlib.suppress(refused):
                    self._libvirt.virEventRemoveHandle(self._watch)
            # libvirt would block the abort of a stream that is still being opened.
            if self._is_open:
                with contextlib.suppress(refused):
                    self._stream.eventRemoveCallback()
                # A libvirtd that hangs must not block the loop, since the loop has to detect the
                # hang.
                with contextlib.suppress(LibvirtHangsError):
                    watched(f"the end of {self._what}", self._abort, _ABORT_S)
        finally:
            self._theirs.close()
            self._close_log()
            self._has_ended.set()

    def _abort(self, _opened: object = None) -> None:
        with contextlib.suppress(self._libvirt.libvirtError):
            self._stream.abort()
