"""An engine of a test's GPU: it does DMA when BAR 0 is written, and signals when it is done."""

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
    """Copies eight bytes from the address that is written into register 0 to the next eight."""

    def __init__(self) -> None:
        self.signal: Callable[[], None] = lambda: None
        self.errors: list[GuestMemoryError] = []
        self.done = threading.Event()
        self.raised: list[tuple[int, str]] = []
        self.is_hung = False
        self.memory_errors = MemoryErrors()
        self.texts: list[bytes] = []
        """What is written before the copy, without a wait."""
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
