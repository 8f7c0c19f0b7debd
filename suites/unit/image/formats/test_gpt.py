"""Reading partition tables (UEFI specification, 5.3)."""

from __future__ import annotations

import struct
import uuid

import pytest

from harness.image.formats.gpt import (
    EXTENDED_BOOT,
    ROOT_X86_64,
    TABLE_BYTES,
    Partition,
    boot_candidates,
    read_table,
)
from suites.e2e.cloud_images.maker import SECTOR, render_gpt

LINUX = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
TOTAL = 10_000


def test_written_partition_table_is_read_back_unchanged() -> None:
    front, _ = render_gpt({1: (LINUX, 4096, 100), 15: (LINUX, 2048, 8)}, TOTAL)

    assert read_table(front) == (
        Partition(number=1, kind=uuid.UUID(LINUX), offset=4096 * SECTOR, size=100 * SECTOR),
        Partition(number=15, kind=uuid.UUID(LINUX), offset=2048 * SECTOR, size=8 * SECTOR),
    )


def test_disk_without_a_whole_partition_table_is_refused() -> None:
    for front in (bytes(TABLE_BYTES), render_gpt({}, TOTAL)[0][: TABLE_BYTES - 1]):
        with pytest.raises(ValueError, match="no GUID partition table"):
            read_table(front)


def test_invalid_partition_entries_are_ignored() -> None:
    """A hostile header may count more entries than there are, and an entry may have no length."""
    front = bytearray(render_gpt({1: (LINUX, 4096, 100), 2: (LINUX, 2048, 8)}, TOTAL)[0])
    struct.pack_into("<I", front, SECTOR + 80, 0xFFFFFFFF)
    struct.pack_into("<QQ", front, 2 * SECTOR + 128 + 32, 4096, 0)

    assert [each.number for each in read_table(bytes(front))] == [1]

    struct.pack_into("<Q", front, SECTOR + 72, 1 << 60)
    assert read_table(bytes(front)) == ()

    struct.pack_into("<I", front, SECTOR + 84, 0)
    assert read_table(bytes(front)) == ()


def test_partition_entries_of_256_bytes_are_read() -> None:
    front = bytearray(render_gpt({1: (LINUX, 4096, 100), 2: (LINUX, 2048, 8)}, TOTAL)[0])
    first, second = 2 * SECTOR, 2 * SECTOR + 128
    front[first + 256 : first + 384] = front[second : second + 128]
    front[second : second + 128] = bytes(128)
    struct.pack_into("<II", front, SECTOR + 80, 2, 256)

    found = [(each.number, each.offset // SECTOR) for each in read_table(bytes(front))]

    assert found == [(1, 4096), (2, 2048)]


def test_partition_entries_that_are_too_small_are_refused() -> None:
    front = bytearray(render_gpt({1: (LINUX, 4096, 100)}, TOTAL)[0])
    for size in (0, 127):
        struct.pack_into("<II", front, SECTOR + 80, 0xFFFFFFFF, size)

        with pytest.raises(ValueError, match=f"entries of {size} bytes, but an entry needs 128"):
            read_table(bytes(front))


def test_boot_partitions_are_searched_before_root_partitions() -> None:
    front, _ = render_gpt(
        {
            1: (LINUX, 100, 1),
            2: ("C12A7328-F81F-11D2-BA4B-00A0C93EC93B", 200, 1),
            3: (str(ROOT_X86_64), 300, 1),
            16: (str(EXTENDED_BOOT), 400, 1),
        },
        TOTAL,
    )

    assert [each.number for each in boot_candidates(read_table(front))] == [16, 3, 1]
