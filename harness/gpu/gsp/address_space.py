"""A GPU's memories, and the virtual addresses that page tables map to these memories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gpu.gsp.frame_buffer import PAGE
from harness.gpu.gsp.guest_memory import MOST_BYTES, GuestMemoryError
from harness.gpu.gsp.page_tables import Directory, PageTables, Place, Space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.gpu.gsp.frame_buffer import FrameBuffer
    from harness.gpu.gsp.guest_memory import GuestMemory
    from harness.gpu.gsp.page_tables import Version

#: The maximum number of translations that an address space stores.
_MOST_KNOWN = 8192


class UnmappedError(Exception):
    """A virtual address is not mapped."""


class Memories:
    """The two memories that a GPU can address physically: the GPU's own and the guest's."""

    def __init__(self, frame_buffer: FrameBuffer, guest: GuestMemory) -> None:
        self.frame_buffer = frame_buffer
        self.guest = guest

    def read(self, space: Space, address: int, size: int) -> bytes:
        """Read physical memory; raises GuestMemoryError."""
        memory = self.frame_buffer if space is Space.FRAME_BUFFER else self.guest
        return memory.read(address, size)

    def write(self, space: Space, address: int, data: bytes) -> None:
        """Write physical memory; raises GuestMemoryError, and LimitError."""
        memory = self.frame_buffer if space is Space.FRAME_BUFFER else self.guest
        memory.write(address, data)


class AddressSpace:
    """The virtual memory that is mapped by the page tables below one page directory."""

    def __init__(
        self, memories: Memories, version: Version, root: Directory, *, has_tlb: bool = False
    ) -> None:
        """If `has_tlb`, store each translation until `forget_translations` is called."""
        self._memories = memories
        self._tables = PageTables(version, memories.read)
        self._root = root
        self._most_known = _MOST_KNOWN if has_tlb else 0
        #: The stored translations: the physical page, by the number of the virtual page.
        self._known: dict[int, tuple[Space, int]] = {}

    @classmethod
    def by_entry(
        cls, memories: Memories, version: Version, *, entry: int, shift: int
    ) -> AddressSpace | None:
        """Return the address space to which `entry` points, with a TLB, or None if `entry` is empty."""
        root = PageTables(version, memories.read).follow(entry, shift)
        return None if root is None else cls(memories, version, root, has_tlb=True)

    def forget_translations(self) -> None:
        """Delete the stored translations, so that changed page tables are read again."""
        self._known.clear()

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes; raises UnmappedError and GuestMemoryError."""
        return b"".join(
            self._memories.read(place.space, place.address, place.length)
            for place in self._places(address, size)
        )

    def write(self, address: int, data: bytes) -> None:
        """Write `data`; raises UnmappedError, GuestMemoryError and LimitError."""
        done = 0
        for place in self._places(address, len(data)):
            piece = data[done : done + place.length]
            self._memories.write(place.space, place.address, piece)
            done += place.length

    def _places(self, address: int, size: int) -> Iterator[Place]:
        if size > MOST_BYTES:
            raise GuestMemoryError(f"An access to {size} bytes at {address:#x} is too large.")
        while size > 0:
            inside = address % PAGE
            length = min(size, PAGE - inside)
            space, page = self._page(address // PAGE)
            yield Place(space, page + inside, length)
            address += length
            size -= length

    def _page(self, number: int) -> tuple[Space, int]:
        known = self._known.get(number)
        if known is not None:
            return known
        place = self._tables.translate(self._root, number * PAGE)
        if place is None:
            raise UnmappedError(f"The virtual address {number * PAGE:#x} is not mapped.")
        if len(self._known) >= self._most_known:
            self._known.clear()
        found = place.space, place.address
        if self._most_known:
            self._known[number] = found
        return found
