"""The agent's end of the port: frames in, frames out, never more than a bounded amount of them."""

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

#: While nobody holds the host's end, a virtio-serial port is always "ready"; so it is only looked
#: at this often.
_AWAY_S = 0.02
#: Output that waits for the port; commands are not read from beyond that.
_ROOM_BYTES = 256 << 10


class Device:
    """A descriptor that the host may leave and come back to."""

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
        """Return what came, None where nothing did, b"" where the host has gone."""
        try:
            return os.read(self._fd, MAX_PAYLOAD)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EINTR:
                return None
            return b""

    def write(self, data: memoryview) -> int | None:
        """Return how much was taken, None where the host has gone."""
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            # EPIPE, ENODEV, ECONNRESET: whoever was to read it has gone.
            return None


class Port:
    """Frames over a device.

    Answers overtake the output of commands, so a flood of it delays nobody else. `on_frame` gets
    kind, request and payload; `on_trouble` a sentence about a stream that is none of ours;
    `on_room` is called when output may flow again after `has_room` has said no.
    """

    def __init__(
        self,
        loop: Loop,
        device: Device,
        *,
        on_frame: Callable[[int, int, bytes], None],
        on_trouble: Callable[[str], None],
        on_room: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._device = device
        self._on_frame = on_frame
        self._on_trouble = on_trouble
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
        """Send frames before all output that waits."""
        if self._fd >= 0:
            self._control.append(frames)
            self._flush()

    def output(self, frames: bytes) -> None:
        """Send frames after all output that waits."""
        if self._fd >= 0:
            self._output.append(frames)
            self._output_bytes += len(frames)
            self._flush()

    def drop_output(self) -> None:
        """Forget all that waits, but for the rest of a frame that is half sent."""
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
                self._take(data)
                return
            if data == b"":
                self._leave()
                return
        if events & ~(READABLE | WRITABLE):
            self._leave()

    def _take(self, data: bytes) -> None:
        try:
            for kind, request, payload in self._decoder.feed(data):
                self._on_frame(kind, request, payload)
        except ProtocolError as error:
            self._decoder.lose_sync()
            self._on_trouble(str(error))

    def _leave(self) -> None:
        """Nobody is there: forget what was meant for them, and look again after a while."""
        if self._fd < 0:
            return
        # It may be a request's own output that found out.
        owner, self._loop.owner = self._loop.owner, NOBODY
        self._loop.remove(self._fd)
        self._fd = -1
        self.drop_output()
        self._partial = None
        self._decoder.lose_sync()
        if self._was_full:
            self._was_full = False
            self._loop.call_soon(self._on_room)
        self._loop.call_later(_AWAY_S, self._come_back)
        self._loop.owner = owner

    def _come_back(self) -> None:
        if not self._device.has_host():
            self._loop.call_later(_AWAY_S, self._come_back)
            return
        self._fd = self._device.fileno()
        self._events = READABLE
        self._loop.add(self._fd, READABLE, self._on_event)
