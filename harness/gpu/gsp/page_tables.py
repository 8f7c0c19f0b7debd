"""The page tables of a GPU: versions 2 (Pascal to Ada) and 3 (Hopper).

The formats are published as NVIDIA's `dev_mmu` reference manuals and headers
(`src/common/inc/swref/published/*/dev_mmu.h` of the open kernel modules).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Space(enum.Enum):
    """The memory to which an entry of a page table points."""

    FRAME_BUFFER = "the GPU's memory"
    GUEST = "the guest's memory"


class Place(NamedTuple):
    """A physical address; the next `length` bytes are in the same page."""

    space: Space
    address: int
    length: int


class Directory(NamedTuple):
    """A page directory: its address, and the lowest address bit that the directory decodes."""

    space: Space
    address: int
    shift: int


class Version(enum.Enum):
    """A version of the format; the value lists the lowest address bit of each directory level."""

    V2 = (47, 38, 29)
    V3 = (56, 47, 38, 29)

    @property
    def root_shift(self) -> int:
        shifts: tuple[int, ...] = self.value
        return shifts[0]


_ENTRY_BYTES: Final = 8
#: Entries of the last directory have 16 bytes: one half for a table of big pages, one half for a
#: table of small pages.
_DUAL_SHIFT: Final = 21
_DUAL_INDEX: Final = 0xFF
_SMALL_SHIFT: Final = 12
_BIG_SHIFT: Final = 16
_FRAME_BUFFER_DIRECTORY: Final = 1


class PageTables:
    """Translates addresses by page tables; `read(space, address, size)` reads the tables."""

    def __init__(self, version: Version, read: Callable[[Space, int, int], bytes]) -> None:
        self._version = version
        self._read = read

    def follow(self, entry: int, shift: int) -> Directory | None:
        """Return the directory to which an `entry` of a directory with `shift` points."""
        shifts = (*self._version.value, _DUAL_SHIFT)
        if shift not in shifts[:-1]:
            return None
        return self._directory(entry, shifts[shifts.index(shift) + 1])

    def translate(self, directory: Directory, address: int) -> Place | None:
        """Return the physical address of a virtual address, or None if nothing is mapped."""
        found: Directory | None = directory
        while found is not None and found.shift > _DUAL_SHIFT:
            here = found
            index = address >> here.shift & self._index_mask(here.shift)
            entry = self._entry(here.space, here.address + _ENTRY_BYTES * index)
            if entry & 1 and self._version is Version.V3:
                # A page of 512 MiB is mapped here.
                return self._page(entry, here.shift, address)
            found = self.follow(entry, here.shift)
        return None if found is None else self._translate_in_last(found, address)

    def _translate_in_last(self, directory: Directory, address: int) -> Place | None:
        at = directory.address + 2 * _ENTRY_BYTES * (address >> _DUAL_SHIFT & _DUAL_INDEX)
        big, small = self._entry(directory.space, at), self._entry(directory.space, at + 8)
        if big & 1:
            return self._page(big, _DUAL_SHIFT, address)
        table = self._directory(small, _SMALL_SHIFT)
        if table is not None and (page := self._page_of(table, address)) is not None:
            return page
        table = self._big_table(big)
        return None if table is None else self._page_of(table, address)

    def _page_of(self, table: Directory, address: int) -> Place | None:
        entries = 1 << _DUAL_SHIFT - table.shift
        index = address >> table.shift & entries - 1
        entry = self._entry(table.space, table.address + _ENTRY_BYTES * index)
        return self._page(entry, table.shift, address) if entry & 1 else None

    def _page(self, entry: int, shift: int, address: int) -> Place:
        is_here = entry >> 1 & 3 == 0
        inside = address & (1 << shift) - 1
        space = Space.FRAME_BUFFER if is_here else Space.GUEST
        start = self._address(entry, is_here=is_here)
        return Place(space, start + inside, (1 << shift) - inside)

    def _directory(self, entry: int, shift: int) -> Directory | None:
        aperture = entry >> 1 & 3
        if not aperture:
            return None
        is_here = aperture == _FRAME_BUFFER_DIRECTORY
        space = Space.FRAME_BUFFER if is_here else Space.GUEST
        return Directory(space, self._address(entry, is_here=is_here), shift)

    def _big_table(self, entry: int) -> Directory | None:
        """Return the table of big pages; its address is a multiple of 256 bytes, not of a page."""
        table = self._directory(entry, _BIG_SHIFT)
        if table is None:
            return None
        if self._version is Version.V3:
            return table._replace(address=entry & (1 << 52) - (1 << 8))
        bits = 29 if table.space is Space.FRAME_BUFFER else 50
        return table._replace(address=(entry >> 4 & (1 << bits) - 1) << 8)

    def _address(self, entry: int, *, is_here: bool) -> int:
        if self._version is Version.V3:
            return entry & (1 << 52) - (1 << 12)
        bits = 25 if is_here else 46
        return (entry >> 8 & (1 << bits) - 1) << 12

    def _index_mask(self, shift: int) -> int:
        if shift == self._version.root_shift:
            return 1 if self._version is Version.V3 else 3
        return 0x1FF

    def _entry(self, space: Space, address: int) -> int:
        return int.from_bytes(self._read(space, address, _ENTRY_BYTES), "little")
