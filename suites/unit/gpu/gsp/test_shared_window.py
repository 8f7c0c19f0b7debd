"""A BAR whose memory QEMU maps."""

from __future__ import annotations

import mmap
import struct

import pytest

from harness.gpu.gsp.address_space import AddressSpace, Memories
from harness.gpu.gsp.frame_buffer import PAGE, FrameBuffer
from harness.gpu.gsp.guest_memory import NoMemory
from harness.gpu.gsp.page_tables import Directory, Space, Version
from harness.gpu.gsp.shared_window import SharedWindow
from harness.limits import GPU_MEMORY, LimitError

DUAL, TABLE, DATA, OTHER = 0x10000, 0x20000, 0x40000, 0x50000
SIZE = 4 << 20


class Guest:
    """A driver's view: page tables in the GPU's memory, and what QEMU has mapped."""

    def __init__(self) -> None:
        self.frame_buffer = FrameBuffer(source="a test")
        self.window = SharedWindow(self.frame_buffer, SIZE)
        self.mapped = mmap.mmap(self.window.fd, SIZE)
        root = Directory(Space.FRAME_BUFFER, DUAL, 21)
        self.space = AddressSpace(Memories(self.frame_buffer, NoMemory()), Version.V2, root)
        self.frame_buffer.write(DUAL + 8, struct.pack("<Q", TABLE >> 12 << 8 | 2))

    def map(self, page: int, address: int, *, aperture: int = 0) -> None:
        entry = address >> 12 << 8 | aperture << 1 | 1
        self.frame_buffer.write(TABLE + 8 * page, struct.pack("<Q", entry))
        self.window.show(self.space)

    def unmap(self, page: int) -> None:
        self.frame_buffer.write(TABLE + 8 * page, bytes(8))
        self.window.show(self.space)


def test_what_the_guest_writes_is_in_the_gpus_memory_at_once() -> None:
    guest = Guest()
    guest.map(3, DATA)

    guest.mapped[3 * PAGE + 5 : 3 * PAGE + 10] = b"hello"

    assert guest.frame_buffer.read(DATA + 5, 5) == b"hello"


def test_what_the_gpu_had_and_writes_is_shown_to_the_guest() -> None:
    guest = Guest()
    guest.frame_buffer.write(DATA, b"before")
    guest.map(3, DATA)

    guest.frame_buffer.write(DATA + 6, b" and after")

    assert guest.mapped[3 * PAGE : 3 * PAGE + 16] == b"before and after"


def test_page_that_is_mapped_elsewhere_keeps_its_content() -> None:
    guest = Guest()
    guest.map(3, DATA)
    guest.mapped[3 * PAGE : 3 * PAGE + 5] = b"hello"

    guest.map(3, OTHER)

    assert guest.frame_buffer.read(DATA, 5) == b"hello"
    assert guest.mapped[3 * PAGE : 3 * PAGE + 5] == bytes(5)
    guest.map(4, DATA)
    assert guest.mapped[4 * PAGE : 4 * PAGE + 5] == b"hello"


def test_pages_that_change_places_keep_their_contents() -> None:
    guest = Guest()
    guest.map(0, DATA)
    guest.map(1, OTHER)
    guest.mapped[0:3], guest.mapped[PAGE : PAGE + 3] = b"one", b"two"

    entries = struct.pack("<QQ", OTHER >> 12 << 8 | 1, DATA >> 12 << 8 | 1)
    guest.frame_buffer.write(TABLE, entries)
    guest.window.show(guest.space)

    assert (guest.mapped[0:3], guest.mapped[PAGE : PAGE + 3]) == (b"two", b"one")


def test_page_tables_can_be_changed_through_the_window() -> None:
    guest = Guest()
    guest.map(7, TABLE)

    guest.mapped[7 * PAGE : 7 * PAGE + 8] = struct.pack("<Q", DATA >> 12 << 8 | 1)
    guest.window.show(guest.space)
    guest.mapped[0:5] = b"hello"

    assert guest.frame_buffer.read(DATA, 5) == b"hello"


def test_page_of_the_guests_own_memory_is_not_shown() -> None:
    guest = Guest()

    guest.map(3, DATA, aperture=2)
    guest.mapped[3 * PAGE : 3 * PAGE + 5] = b"hello"

    assert guest.frame_buffer.read(DATA, 5) == bytes(5)


def test_memory_that_is_zeroed_while_it_is_shown_reads_as_zeros_on_both_sides() -> None:
    guest = Guest()
    guest.map(3, DATA)
    guest.mapped[3 * PAGE : 3 * PAGE + 5] = b"hello"

    guest.frame_buffer.zero(DATA, 2 * PAGE)

    assert guest.mapped[3 * PAGE : 3 * PAGE + 5] == bytes(5)
    guest.mapped[3 * PAGE : 3 * PAGE + 5] = b"again"
    assert guest.frame_buffer.read(DATA, 5) == b"again"


def test_loss_of_power_forgets_what_was_shown() -> None:
    guest = Guest()
    guest.map(3, DATA)
    guest.mapped[3 * PAGE : 3 * PAGE + 5] = b"hello"

    guest.frame_buffer.clear()
    guest.window.clear()

    assert guest.mapped[3 * PAGE : 3 * PAGE + 5] == bytes(5)
    assert guest.frame_buffer.read(DATA, 5) == bytes(5)


def test_what_a_guest_fills_by_the_window_has_the_limit_of_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(GPU_MEMORY.variable, "1")
    guest = Guest()

    def fill() -> None:
        for number in range(300):
            guest.map(0, DATA + number * PAGE)
            guest.mapped[0:1] = b"x"

    with pytest.raises(LimitError, match="'gpu-memory-mib'"):
        fill()
