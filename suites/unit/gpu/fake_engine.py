"""A fake GPU engine that does DMA after a write to BAR 0, and then signals an interrupt."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from harness.gpu.gsp.guest_memory import GuestMemoryError
from harness.gpu.gsp.state import MemoryErrors, Readings

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.gpu.gsp.guest_memory import GuestMemory
    from harness.gpu.trace import IncidentKind


class CopyingEngine:
    """Copies the eight bytes at the address in register 0 to the eight bytes after them."""

    def __init__(self) -> None:
        self.signal: Callable[[], None] = lambda: None
        self.errors: list[GuestMemoryError] = []
        self.done = threading.Event()
        self.raised: list[tuple[int, str]] = []
        self.is_hung = False
        self.memory_errors = MemoryErrors()
        self.texts: list[bytes] = []
        """Texts to post to guest memory before the copy."""
        self.readings = Readings()
        self._posted: list[int] = []

    def read(self, bar: int, offset: int, size: int) -> int:
        return (bar << 8 | offset) & (1 << 8 * size) - 1

    def write(self, bar: int, offset: int, value: int, size: int) -> None:
        del size
        if (bar, offset) == (0, 0):
            self._posted.append(value)

    def reset(self) -> None:
        self._posted.clear()

    @property
    def has_work(self) -> bool:
        return bool(self._posted)

    def work(self, guest: GuestMemory) -> None:
        address = self._posted.pop(0)
        for text in self.texts:
            guest.post(address, text)
        try:
            guest.write(address + 8, guest.read(address, 8))
        except GuestMemoryError as error:
            self.errors.append(error)
        self.signal()
        self.done.set()

    def note_by(self, note: Callable[[IncidentKind, str], None]) -> None:
        self.note = note

    def raise_xid(self, number: int, text: str) -> None:
        self.raised.append((number, text))
        self._posted.append(number)

    def hang(self) -> None:
        self.is_hung = True
