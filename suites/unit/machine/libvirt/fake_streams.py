"""Fakes of libvirt's streams and of its event loop."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

if TYPE_CHECKING:
    from collections.abc import Callable

READABLE, WRITABLE, ERROR, HANGUP = 1, 2, 4, 8
WOULD_BLOCK = -2
#: Every write to this device fails, as on a full file system.
FULL = Path("/dev/full")


class FakeStream:
    """A fake `virStream`: returns the guest's output from `incoming`, and accepts `room` bytes."""

    def __init__(self) -> None:
        self.incoming: list[bytes | int | Exception] = []
        self.taken = b""
        self.room = 1 << 20
        self.interest = 0
        self.is_watched = False
        self.is_aborted = False

    def recv(self, size: int) -> bytes | int:
        answer = self.incoming.pop(0) if self.incoming else WOULD_BLOCK
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, int) or len(answer) <= size
        return answer

    def send(self, data: bytes) -> int:
        if not self.room:
            return WOULD_BLOCK
        part = data[: self.room]
        self.room -= len(part)
        self.taken += part
        return len(part)

    def eventAddCallback(self, events: int, callback: Any, _opaque: object) -> None:  # noqa: N802
        assert events > 0
        self.interest, self.callback, self.is_watched = events, callback, True

    def eventUpdateCallback(self, events: int) -> None:  # noqa: N802
        self.interest = events

    def eventRemoveCallback(self) -> None:  # noqa: N802
        self.is_watched = False

    def abort(self) -> None:
        self.is_aborted = True

    def turn(self, events: int) -> None:
        """Call the callback with those `events` for which it is registered."""
        self.callback(self, events & self.interest, None)


class FakeLoopLibvirt(FakeLibvirt):
    """A fake of the part of `libvirt` that watches streams and sockets."""

    VIR_STREAM_NONBLOCK = 1
    VIR_STREAM_EVENT_READABLE = VIR_EVENT_HANDLE_READABLE = READABLE
    VIR_STREAM_EVENT_WRITABLE = VIR_EVENT_HANDLE_WRITABLE = WRITABLE
    VIR_STREAM_EVENT_ERROR = VIR_EVENT_HANDLE_ERROR = ERROR
    VIR_STREAM_EVENT_HANGUP = VIR_EVENT_HANDLE_HANGUP = HANGUP

    def __init__(self) -> None:
        super().__init__()
        self.handle: Callable[..., None] | None = None
        self.interest = 0

    def virEventAddHandle(self, fd: int, events: int, call: Any, _: object) -> int:  # noqa: N802
        assert stat.S_ISSOCK(os.fstat(fd).st_mode)
        assert events >= 0
        self.handle, self.interest = call, events
        return 5

    def virEventUpdateHandle(self, watch: int, events: int) -> None:  # noqa: N802
        assert watch == 5
        self.interest = events

    def virEventRemoveHandle(self, watch: int) -> None:  # noqa: N802
        assert watch == 5
        self.handle = None

    def turn(self, events: int) -> None:
        if self.handle is not None:
            self.handle(5, 0, events & self.interest, None)
