"""The agent's end of the port to the host: receives and sends frames, with bounded buffers."""

from __future__ import annotations

import errno
import os
import select
from collections import deque

from .frames import MAX_PAYLOAD, Decoder, ProtocolError
from .loop import NOBODY, READABLE, WRITABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop

#: The interval at which the port is checked while the host's end is closed. During this time, poll
#: always reports a virtio-serial port as ready.
_RECHECK_S = 0.02
#: The limit of queued output in bytes. While the queue is above this limit, the agent does not
#: read the output of commands.
_ROOM_BYTES = 256 << 10


class PortDevice:
    """The descriptor of the agent's port; the host may close and reopen the other end of the port."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, 0)
        os.set_blocking(fd, False)
        os.set_inheritable(fd, False)

    def fileno(self) -> int:
        return self._fd

    def has_host(self) -> bool:
        return not any(events & select.POLLHUP for _, events in self._poll.poll(0))

    def read(self) -> bytes | None:
        """Return available data, None if no data is available, or b"" if the host has hung up."""
        try:
            return os.read(self._fd, MAX_PAYLOAD)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EINTR:
                return None
            return b""

    def write(self, data: memoryview) -> int | None:
        """Write `data` without blocking.

        Return the number of written bytes, or None if the host has closed the port.
        """
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            # EPIPE, ENODEV, ECONNRESET: the host has closed its end.
            return None


class Port:
    """Sends and receives frames over a `PortDevice`.

    Answers are sent before queued output of commands, so that output does not delay answers.
    `on_frame` is called with the kind, request and payload of a frame. If the received stream is
    invalid, `on_stream_error` is called with a sentence that describes the error. `on_room` is
    called when `has_room` becomes True again.
    """

    def __init__(
        self,
        loop: Loop,
        device: PortDevice,
        *,
        on_frame: Callable[[int, int, bytes], None],
        on_stream_error: Callable[[str], None],
        on_room: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._device = device
        self._on_frame = on_frame
        self._on_stream_error = on_stream_error
        self._on_room = on_room
        self._decoder = Decoder(is_synced=False)
        self._partial: memoryview | None = None
        self._control: deque[bytes] = deque()
        self._output: deque[bytes] = deque()
        self._output_bytes = 0
        self._was_full = False
        self._fd = -1
        self._events = 0
        self._come_back()

    @property
    def has_room(self) -> bool:
        if self._output_bytes < _ROOM_BYTES:
            return True
        self._was_full = True
        return False

    def answer(self, frames: bytes) -> None:
        """Send frames before all queued output of commands."""
        if self._fd >= 0:
            self._control.append(frames)
            self._flush()

    def output(self, frames: bytes) -> None:
        """Send frames after all queued output of commands."""
        if self._fd >= 0:
            self._output.append(frames)
            self._output_bytes += len(frames)
            self._flush()

    def drop_output(self) -> None:
        """Discard all queued frames, except the rest of a frame that is partly sent."""
        self._control.clear()
        self._output.clear()
        self._output_bytes = 0

    def _flush(self) -> None:
        while True:
            partial = self._partial
            if partial is None:
                if self._control:
                    partial = memoryview(self._control.popleft())
                elif self._output:
                    frames = self._output.popleft()
                    self._output_bytes -= len(frames)
                    partial = memoryview(frames)
                else:
                    break
            taken = self._device.write(partial)
            if taken is None:
                self._leave()
                return
            if taken < len(partial):
                self._partial = partial[taken:]
                if taken == 0:
                    break
            else:
                self._partial = None
        self._watch()
        if self._was_full and self._output_bytes < _ROOM_BYTES // 2:
            self._was_full = False
            owner, self._loop.owner = self._loop.owner, NOBODY
            self._loop.call_soon(self._on_room)
            self._loop.owner = owner

    def _watch(self) -> None:
        events = READABLE if self._partial is None else READABLE | WRITABLE
        if events != self._events and self._fd >= 0:
            self._loop.change(self._fd, events)
            self._events = events

    def _on_event(self, events: int) -> None:
        if events & WRITABLE:
            self._flush()
        if events & READABLE:
            data = self._device.read()
            if data:
                self._decode(data)
                return
            if data == b"":
                self._leave()
                return
        if events & ~(READABLE | WRITABLE):
            self._leave()

    def _decode(self, data: bytes) -> None:
        try:
            for kind, request, payload in self._decoder.feed(data):
                self._on_frame(kind, request, payload)
        except ProtocolError as error:
            self._decoder.lose_sync()
            self._on_stream_error(str(error))

    def _leave(self) -> None:
        """Discard queued frames, and check later whether the host has opened the port again."""
        if self._fd < 0:
            return
        # The caller may be a request, but the callbacks below belong to no request.
        owner, self._loop.owner = self._loop.owner, NOBODY
        self._loop.remove(self._fd)
        self._fd = -1
        self.drop_output()
        self._partial = None
        self._decoder.lose_sync()
        if self._was_full:
            self._was_full = False
            self._loop.call_soon(self._on_room)
        self._loop.call_later(_RECHECK_S, self._come_back)
        self._loop.owner = owner

    def _come_back(self) -> None:
        if not self._device.has_host():
            self._loop.call_later(_RECHECK_S, self._come_back)
            return
        self._fd = self._device.fileno()
        self._events = READABLE
        self._loop.add(self._fd, READABLE, self._on_event)
