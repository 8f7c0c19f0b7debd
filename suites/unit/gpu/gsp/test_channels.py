"""Channels and the copy engine."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gpu.gsp import channels
from harness.gpu.gsp.address_space import AddressSpace, Memories, UnmappedError
from harness.gpu.gsp.channels import Channel, ChannelError, ChannelPlace
from harness.gpu.gsp.frame_buffer import FrameBuffer
from harness.gpu.gsp.guest_memory import GuestMemoryError
from harness.gpu.gsp.page_tables import Directory, Space, Version
from suites.unit.gpu.gsp.driverside import Ram

ROOT = 0x10_0000_0000
RING, PUSH, SEMAPHORE, STATE = 0x1000, 0x2000, 0x3000, 0x4000
ENTRIES = 16
#: Launch: a transfer without pipelining, and the release of a semaphore of one word.
TRANSFER, RELEASE = 1, 1 << 3
PHYSICAL = 1 << 12 | 1 << 13


class Work:
    """A channel whose first 2 MiB of virtual addresses are mapped to guest memory."""

    def __init__(self, *, can_scrub: bool = False) -> None:
        self.ram = Ram()
        self.memories = Memories(FrameBuffer(source="a test"), self.ram)
        at = ROOT
        for _ in Version.V2.value:
            below = at + 0x10000
            self._put(at, below >> 12 << 8 | 1 << 1)
            at = below
        # The directory entry maps one page of 2 MiB to address 0 of the guest's memory.
        self._put(at, 1 | 2 << 1)
        root = Directory(Space.FRAME_BUFFER, ROOT, Version.V2.root_shift)
        space = AddressSpace(self.memories, Version.V2, root)
        place = ChannelPlace(
            entries_at=RING, entries=ENTRIES, state_in=Space.GUEST, state_at=STATE
        )
        self.channel = Channel(place, space, self.memories, can_scrub=can_scrub)

    def _put(self, address: int, entry: int) -> None:
        self.memories.write(Space.FRAME_BUFFER, address, struct.pack("<Q", entry))

    def run(self, *words: int) -> bool:
        self.ram.write(PUSH, struct.pack(f"<{len(words)}I", *words))
        self.ram.write(RING, struct.pack("<II", PUSH, len(words) << 10))
        self.ram.write(STATE + 0x8C, struct.pack("<I", 1))
        return self.channel.run()


def a_method(method: int, *values: int) -> tuple[int, ...]:
    return (1 << 29 | len(values) << 16 | method >> 2, *values)


def test_copy_of_physical_memory_writes_the_data_and_releases_the_semaphore() -> None:
    work = Work()
    work.ram.write(0x8000, b"hello, world")

    work.run(
        *a_method(0x240, 0, SEMAPHORE, 77),
        *a_method(0x260, 1, 0),
        # The line count 2 has no effect, since the launch has no flag for several lines.
        *a_method(0x400, 0, 0x8000, 0, 0x123000, 6, 6, 5, 2),
        *a_method(0x300, TRANSFER | RELEASE | PHYSICAL),
    )

    assert work.memories.read(Space.FRAME_BUFFER, 0x123000, 12) == b"hello" + bytes(7)
    assert work.ram.read(SEMAPHORE, 4) == struct.pack("<I", 77)
    assert work.ram.read(STATE + 0x88, 4) == struct.pack("<I", 1)


def test_copy_of_several_lines_applies_the_pitches_of_source_and_destination() -> None:
    work = Work()
    work.ram.write(0x8000, b"abXcdX")

    work.run(
        *a_method(0x400, 0, 0x8000, 0, 0x9000, 3, 4, 2, 2),
        *a_method(0x300, TRANSFER | 1 << 9),
    )

    assert work.ram.read(0x9000, 6) == b"ab\0\0cd"


def test_virtual_memory_is_copied_to_physical_memory() -> None:
    work = Work()
    work.ram.write(0x8000, b"ab")

    work.run(
        *a_method(0x400, 0, 0x8000, 0, 0x123000),
        *a_method(0x418, 2),
        *a_method(0x300, 1 | 1 << 13),
    )

    assert work.memories.read(Space.FRAME_BUFFER, 0x123000, 2) == b"ab"


def test_memory_fill_repeats_the_given_constant() -> None:
    """The constant has one component of four bytes, or four components of one byte."""
    for remap, written in ((3 << 16, b"\1\2\3\4"), (3 << 24, b"\1" * 4)):
        work = Work()

        work.run(
            *a_method(0x408, 0, 0x9000),
            *a_method(0x418, 3),
            *a_method(0x700, 0x04030201),
            *a_method(0x708, remap),
            *a_method(0x300, TRANSFER | 1 << 10),
        )

        assert work.ram.read(0x9000, 16) == written * 3 + bytes(4)
    # A fill with zeros also writes to the guest's memory; in the GPU's own memory, it only drops
    # pages.
    work = Work()
    work.ram.write(0x9000, b"\xff" * 5)
    work.run(*a_method(0x408, 0, 0x9000), *a_method(0x418, 4), *a_method(0x300, 1 | 1 << 10))
    assert work.ram.read(0x9000, 5) == bytes(4) + b"\xff"


def test_zero_fill_of_all_memory_clears_written_pages() -> None:
    work = Work()
    work.memories.write(Space.FRAME_BUFFER, 0x5000, b"\1")

    work.run(
        *a_method(0x408, 0, 0),
        *a_method(0x418, 0xFFFFFFFF),
        *a_method(0x708, 3 << 16),
        *a_method(0x300, TRANSFER | 1 << 10 | PHYSICAL),
    )

    assert work.memories.read(Space.FRAME_BUFFER, 0x5000, 1) == b"\0"


def test_launch_with_the_scrub_bit_zeroes_memory_on_hopper() -> None:
    work = Work(can_scrub=True)
    work.memories.write(Space.FRAME_BUFFER, 0x5000, b"\1")

    work.run(*a_method(0x408, 0, 0x5000), *a_method(0x418, 1), *a_method(0x300, 1 << 23 | 1))

    assert work.memories.read(Space.FRAME_BUFFER, 0x5000, 1) == b"\0"


def test_semaphore_is_released_by_methods_of_the_host_class() -> None:
    work = Work()

    # A method that waits for a semaphore writes nothing.
    waits = a_method(0x5C, SEMAPHORE + 8, 0, 3, 4, 3 | 1 << 24)

    work.run(*waits, *a_method(0x5C, SEMAPHORE, 0, 1, 2, 1 | 1 << 24))

    assert work.ram.read(SEMAPHORE, 16) == struct.pack("<IIQ", 1, 2, 0)


def test_immediate_and_non_incrementing_and_increment_once_methods_are_executed() -> None:
    immediate = 4 << 29 | 9 << 16 | 0x64 >> 2
    for opcode, values in ((3, (1, SEMAPHORE)), (5, (SEMAPHORE, 1, 0))):
        work = Work()
        work.ram.write(SEMAPHORE, b"\xff" * 8)

        work.run(
            opcode << 29 | len(values) << 16 | 0x5C >> 2,
            *(*values, immediate, *a_method(0x68, 7), *a_method(0x6C, 1)),
        )

        assert work.ram.read(SEMAPHORE, 8) == struct.pack("<I", 9) + b"\xff" * 4


def test_launch_without_a_transfer_releases_its_semaphore() -> None:
    for launch, released in (
        (0, b"\xff" * 16),
        (1 << 3, b"M\0\0\0" + b"\xff" * 12),
        (2 << 3, b"M" + bytes(15)),
    ):
        work = Work()
        work.ram.write(SEMAPHORE, b"\xff" * 16)

        work.run(*a_method(0x240, 0, SEMAPHORE, ord("M")), *a_method(0x300, launch))

        assert work.ram.read(SEMAPHORE, 16) == released


def test_malformed_or_excessive_channel_work_raises_a_channel_error() -> None:
    for words in (
        (0xE0000001,),
        (0x10001,),
        (*a_method(0x418, 0xFFFFFFFF), *a_method(0x300, TRANSFER | PHYSICAL)),
        # The number of lines is limited, since even an empty line takes time.
        (*a_method(0x418, 0, (1 << 16) + 1), *a_method(0x300, TRANSFER | 1 << 9)),
        (*a_method(0x418, 1 << 20, 65), *a_method(0x300, TRANSFER | 1 << 9)),
        (
            *a_method(0x700, 1),
            *a_method(0x418, 0xFFFFFFFF),
            *a_method(0x708, 3 << 16),
            *a_method(0x300, TRANSFER | 1 << 10),
        ),
    ):
        with pytest.raises(ChannelError):
            pytest.fail(f"{words} were carried out: {Work().run(*words)}")


@pytest.mark.parametrize("most", [1, 4096])
def test_channel_reads_all_new_ring_entries_with_at_most_two_reads(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Each read is a message to QEMU; 4,000 single reads took longer than the driver's timeout."""
    monkeypatch.setattr(channels, "_MOST_ENTRIES", most)
    work = Work()
    for value in range(ENTRIES):
        at = PUSH + 0x40 * value
        words = a_method(0x5C, SEMAPHORE, 0, value, 0, 1)
        work.ram.write(at, struct.pack(f"<{len(words)}I", *words))
        work.ram.write(RING + 8 * value, struct.pack("<II", at, len(words) << 10))

    for put, last, more in ((ENTRIES - 2, ENTRIES - 3, []), (3, 2, [True] if most == 1 else [])):
        work.ram.write(STATE + 0x8C, struct.pack("<I", put))
        work.ram.reads.clear()
        assert [work.channel.run() for _ in range(1 + len(more))] == [*more, False]
        assert work.ram.read(SEMAPHORE, 4) == struct.pack("<I", last)
        assert work.ram.read(STATE + 0x88, 4) == struct.pack("<I", put)
        assert len([at for at in work.ram.reads if RING <= at < RING + 8 * ENTRIES]) <= 2


def test_put_pointer_beyond_the_end_of_the_ring_is_refused() -> None:
    work = Work()
    work.ram.write(STATE + 0x8C, struct.pack("<I", ENTRIES))

    with pytest.raises(ChannelError, match=f"ring has {ENTRIES} entries"):
        work.channel.run()


@given(st.lists(st.integers(0, 0xFFFFFFFF), max_size=40))
def test_commands_of_a_hostile_guest_are_carried_out_or_refused(words: list[int]) -> None:
    try:
        Work().run(*words)
    except (ChannelError, UnmappedError, GuestMemoryError):
        return
