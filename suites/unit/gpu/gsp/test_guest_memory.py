"""Guest memory that is mapped into this process."""

from __future__ import annotations

import os

import pytest

from harness.gpu.gsp.guest_memory import MOST_BYTES, GuestMemoryError, MappedMemory

PAGE = 4096


def test_mapped_guest_memory_is_accessible_up_to_its_last_byte_and_not_beyond() -> None:
    fd = os.memfd_create("guest")
    os.truncate(fd, MOST_BYTES + 2 * PAGE)
    memory = MappedMemory()
    memory.add(0, PAGE, 0, fd=fd)
    memory.add(1 << 32, MOST_BYTES + PAGE, PAGE, fd=fd)
    memory.add(1 << 40, PAGE, 1, fd=fd)

    memory.write(PAGE - 2, b"ab")
    memory.write((1 << 32) + MOST_BYTES + PAGE - 2, b"cd")

    assert os.pread(fd, 2, PAGE - 2) == memory.read(PAGE - 2, 2) == b"ab"
    assert os.pread(fd, 2, MOST_BYTES + 2 * PAGE - 2) == b"cd"
    assert memory.read((1 << 32) + MOST_BYTES + PAGE - 2, 2) == b"cd"
    for address, size in ((PAGE - 1, 2), (1 << 32, MOST_BYTES + 1), (1 << 40, 1), (PAGE, 1)):
        with pytest.raises(GuestMemoryError, match=f"no {size} bytes of memory at {address:#x}"):
            memory.read(address, size)
    assert memory.read(1 << 32, MOST_BYTES) == bytes(MOST_BYTES)
    maps = [region.content for region in memory._regions]
    memory.clear()
    assert all(each.closed for each in maps)
    with pytest.raises(GuestMemoryError):
        memory.read(0, 1)
    os.close(fd)
