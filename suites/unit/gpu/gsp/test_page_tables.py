"""Translation of a GPU's virtual addresses."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gpu.gsp import address_space
from harness.gpu.gsp.address_space import AddressSpace, Memories, UnmappedError
from harness.gpu.gsp.frame_buffer import FrameBuffer
from harness.gpu.gsp.guest_memory import GuestMemoryError
from harness.gpu.gsp.page_tables import Directory, PageTables, Space, Version
from suites.unit.gpu.gsp.driverside import Ram

#: The addresses of the page directories; each directory has one or more pages.
ROOT = 0x100000
TABLES = range(0x200000, 0x900000, 0x10000)
VIRTUAL = 0x1234_5678_9000
DATA = 0x40000


def _directory_entry(version: Version, address: int, aperture: int) -> int:
    if version is Version.V3:
        return address | aperture << 1
    return address >> 12 << 8 | aperture << 1


def _page_entry(version: Version, address: int, aperture: int) -> int:
    return _directory_entry(version, address, aperture) | 1


class Tables:
    """Page tables in a frame buffer."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.memories = Memories(FrameBuffer(source="a test"), Ram())
        self._free = iter(TABLES)

    def put(self, address: int, entry: int) -> None:
        self.memories.write(Space.FRAME_BUFFER, address, struct.pack("<Q", entry))

    def descend(self) -> int:
        """Write the page directories for VIRTUAL, and return the address of its dual entry."""
        at = ROOT
        for shift in self.version.value:
            below = next(self._free)
            bits = 3 if shift == self.version.root_shift else 0x1FF
            entry = _directory_entry(self.version, below, 1)
            self.put(at + 8 * (VIRTUAL >> shift & bits), entry)
            at = below
        return at + 16 * (VIRTUAL >> 21 & 0xFF)

    def map_small(self, address: int, aperture: int) -> None:
        dual, table = self.descend(), next(self._free)
        self.put(dual + 8, _directory_entry(self.version, table, 1))
        entry = _page_entry(self.version, address, aperture)
        self.put(table + 8 * (VIRTUAL >> 12 & 0x1FF), entry)

    def space(self) -> AddressSpace:
        root = Directory(Space.FRAME_BUFFER, ROOT, self.version.root_shift)
        return AddressSpace(self.memories, self.version, root)


VERSIONS = pytest.mark.parametrize("version", list(Version))


@VERSIONS
def test_access_through_a_small_page_uses_the_memory_space_of_the_page_entry(
    version: Version,
) -> None:
    for aperture, memory in ((2, Space.GUEST), (0, Space.FRAME_BUFFER)):
        tables = Tables(version)
        tables.map_small(DATA, aperture=aperture)
        tables.memories.write(memory, DATA + 5, b"hello")

        assert tables.space().read(VIRTUAL + 5, 5) == b"hello"
        tables.space().write(VIRTUAL + 8, b"hello")
        assert tables.memories.read(memory, DATA + 5, 8) == b"helhello"


@VERSIONS
def test_address_in_a_large_page_is_translated(version: Version) -> None:
    tables = Tables(version)
    tables.put(tables.descend(), _page_entry(version, 0x80000000, 0))
    at = 0x80000000 + (VIRTUAL & 0x1FFFFF)
    tables.memories.write(Space.FRAME_BUFFER, at, b"here")

    assert tables.space().read(VIRTUAL, 4) == b"here"
    data = bytes(range(1, 251)) * 50
    tables.space().write(VIRTUAL + 4093, data)
    found = tables.memories.read(Space.FRAME_BUFFER, at + 4093, len(data) + 1)
    assert found == data + b"\0"


@VERSIONS
def test_big_page_is_used_only_where_no_small_page_maps_the_address(
    version: Version,
) -> None:
    """A driver may map one part of 2 MiB by small pages, and another part by big pages."""
    tables = Tables(version)
    dual, table = tables.descend(), 0x50100
    # The address of a table of big pages is a multiple of 256 bytes. The highest bit that is set
    # here does not belong to the address.
    entry = table | 2 | 1 << 60 if version is Version.V3 else table >> 8 << 4 | 2 | 1 << 40
    tables.put(dual, entry)
    page = _page_entry(version, 0x70000, 0)
    for address in (VIRTUAL, VIRTUAL + 0x10000):
        tables.put(table + 8 * (address >> 16 & 31), page)
    tables.memories.write(Space.FRAME_BUFFER, 0x70000 + (VIRTUAL & 0xFFFF), b"here")
    assert tables.space().read(VIRTUAL, 4) == b"here"

    # A small page maps the second address too; the small page has precedence over the big page.
    small = next(tables._free)
    tables.put(dual + 8, _directory_entry(version, small, 1))
    tables.put(small + 8 * (VIRTUAL + 0x10000 >> 12 & 0x1FF), _page_entry(version, DATA, 0))
    tables.memories.write(Space.FRAME_BUFFER, DATA, b"there")
    assert tables.space().read(VIRTUAL, 4) == b"here"
    assert tables.space().read(VIRTUAL + 0x10000, 5) == b"there"


def test_address_in_a_page_of_512_mib_is_translated_in_version_3() -> None:
    tables = Tables(Version.V3)
    tables.descend()
    # The entry is in the last directory above the directory with dual entries.
    tables.put(TABLES[2] + 8 * (VIRTUAL >> 29 & 0x1FF), 0x4000_0000 | 1)
    tables.memories.write(Space.FRAME_BUFFER, 0x4000_0000 + (VIRTUAL & (1 << 29) - 1), b"here")

    assert tables.space().read(VIRTUAL, 4) == b"here"


@VERSIONS
def test_address_space_can_be_opened_from_a_page_directory_entry(
    version: Version,
) -> None:
    """An entry that points to no page directory has no address space."""
    tables = Tables(version)
    tables.map_small(DATA, aperture=0)
    entry = _directory_entry(version, TABLES[0], 1)
    shift = version.root_shift

    space = AddressSpace.by_entry(tables.memories, version, entry=entry, shift=shift)

    assert space is not None
    space.write(VIRTUAL, b"hello")
    assert tables.memories.read(Space.FRAME_BUFFER, DATA, 5) == b"hello"
    for entry, shift in ((0, version.root_shift), (2, 21), (2, 12), (2, 0), (2, 1 << 60)):
        assert AddressSpace.by_entry(tables.memories, version, entry=entry, shift=shift) is None


@VERSIONS
def test_access_to_an_unmapped_page_or_a_too_large_access_raises_an_error(
    version: Version,
) -> None:
    with pytest.raises(UnmappedError, match="0x123456789000"):
        Tables(version).space().read(VIRTUAL, 1)

    tables = Tables(version)
    tables.map_small(DATA, aperture=0)
    with pytest.raises(UnmappedError):
        tables.space().read(VIRTUAL + 4090, 8)
    with pytest.raises(GuestMemoryError):
        tables.space().read(VIRTUAL, 1 << 30)


@pytest.mark.parametrize("has_tlb", [True, False])
def test_removed_mapping_stays_cached_in_the_tlb_until_the_tlb_is_invalidated(
    *, has_tlb: bool
) -> None:
    tables = Tables(Version.V3)
    tables.map_small(DATA, aperture=0)
    root = Directory(Space.FRAME_BUFFER, ROOT, Version.V3.root_shift)
    space = AddressSpace(tables.memories, Version.V3, root, has_tlb=has_tlb)
    space.write(VIRTUAL, b"hello")

    tables.put(TABLES[len(Version.V3.value)] + 8 * (VIRTUAL >> 12 & 0x1FF), 0)

    with contextlib.nullcontext() if has_tlb else pytest.raises(UnmappedError):
        assert space.read(VIRTUAL, 5) == b"hello"
    space.forget_translations()
    with pytest.raises(UnmappedError):
        space.read(VIRTUAL, 5)


def test_tlb_of_an_address_space_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in (1, 2):
        monkeypatch.setattr(address_space, "_MOST_KNOWN", most)
        tables = Tables(Version.V2)
        dual = tables.descend()
        tables.put(dual, _page_entry(Version.V2, 0x80000000, 0))
        root = Directory(Space.FRAME_BUFFER, ROOT, Version.V2.root_shift)
        space = AddressSpace(tables.memories, Version.V2, root, has_tlb=True)
        space.read(VIRTUAL, 4097)
        tables.put(dual, 0)

        with pytest.raises(UnmappedError) if most == 1 else contextlib.nullcontext():
            space.read(VIRTUAL, 1)


@given(st.data(), st.sampled_from(list(Version)), st.integers(0, (1 << 64) - 1))
def test_translation_with_arbitrary_page_tables_terminates(
    data: st.DataObject, version: Version, address: int
) -> None:
    def read(_space: Space, _address: int, size: int) -> bytes:
        return data.draw(st.binary(min_size=size, max_size=size))

    root = Directory(Space.FRAME_BUFFER, ROOT, version.root_shift)

    place = PageTables(version, read).translate(root, address)

    assert place is None or place.length > 0
