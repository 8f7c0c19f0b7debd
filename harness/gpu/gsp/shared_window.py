"""Memory behind a BAR, which QEMU maps: accesses of the guest to it are no messages.

The BAR is virtual memory. While a page of the GPU's memory is mapped into it, its content lies here, so guest
and device have the same bytes. The device looks at the page tables when the driver has the GPU forget
translations, as after each change of them; a GPU's own cache of translations may be as old.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import TYPE_CHECKING

from harness.gpu.gsp.frame_buffer import PAGE
from harness.gpu.gsp.page_tables import Space

if TYPE_CHECKING:
    from harness.gpu.gsp.address_space import AddressSpace
    from harness.gpu.gsp.frame_buffer import FrameBuffer


class SharedWindow:
    """The first bytes of a virtual address space, as shared memory of that size."""

    def __init__(self, frame_buffer: FrameBuffer, size: int) -> None:
        self._frame_buffer = frame_buffer
        self.fd = os.memfd_create("gpu-bar", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.fd)
        os.truncate(self.fd, size)
        self._content = memoryview(mmap.mmap(self.fd, size))
        #: Number of the page in the window, and in the GPU's memory.
        self._shown: dict[int, int] = {}
        #: Pages of the window that may hold something.
        self._used: set[int] = set()

    def show(self, space: AddressSpace | None) -> None:
        """Show what the page tables map now."""
        mapped = {} if space is None else self._mapped(space)
        if mapped == self._shown:
            return
        kept = mapped.items() & self._shown.items()
        for _, page in self._shown.items() - kept:
            self._frame_buffer.take_back(page)
        for number, page in mapped.items() - kept:
            place = self._content[number * PAGE : (number + 1) * PAGE]
            self._frame_buffer.lend(page, place, is_zero=number not in self._used)
            self._used.add(number)
        self._shown = mapped

    def clear(self) -> None:
        """Show nothing; the frame buffer was cleared."""
        self._shown.clear()
        for number in self._used:
            self._content[number * PAGE : (number + 1) * PAGE] = bytes(PAGE)

    def _mapped(self, space: AddressSpace) -> dict[int, int]:
        """Return the page of the GPU's memory behind each of the window's.

        A page that is mapped twice is there once: it can't lie at two places.
        """
        pages = {
            place.address // PAGE: address // PAGE
            for address, place in space.pages(len(self._content))
            if place.space is Space.FRAME_BUFFER
        }
        return {number: page for page, number in pages.items()}
