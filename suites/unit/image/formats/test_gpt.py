"""Partition tables, as they are read and as e2e tests make them (UEFI specification, 5.3)."""

from __future__ import annotations

import struct
import uuid
import zlib

import pytest

from harness.image.formats.gpt import (
    EXTENDED_BOOT,
    ROOT_X86_64,
    TABLE_BYTES,
    Partition,
    boot_candidates,
    read_table,
)
from suites.e2e.cloud_images.maker import SECTOR, boot_core, boot_sector, render_gpt

LINUX = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
TOTAL = 10_000


def test_protective_record_covers_the_disk() -> None:
    front, _ = render_gpt({1: (LINUX, 2048, 100)}, TOTAL)

    record = front[446:462]
    assert record[4] == 0xEE
    assert struct.unpack("<II", record[8:]) == (1, TOTAL - 1)
    assert front[510:512] == b"\x55\xaa"


def test_both_headers_are_sound_and_name_each_other() -> None:
    front, back = render_gpt({1: (LINUX, 2048, 100)}, TOTAL)

    for header, here, other, table_at in (
        (front[SECTOR : SECTOR + 92], 1, TOTAL - 1, 2),
        (back[-SECTOR : 92 - SECTOR], TOTAL - 1, 1, TOTAL - 33),
    ):
        assert header[:8] == b"EFI PART"
        without_sum = header[:16] + bytes(4) + header[20:]
        assert struct.unpack_from("<I", header, 16)[0] == zlib.crc32(without_sum)
        assert struct.unpack_from("<QQQQ", header, 24) == (here, other, 34, TOTAL - 34)
        assert struct.unpack_from("<Q", header, 72)[0] == table_at
    assert front[2 * SECTOR :] == back[:-SECTOR]


def test_entry_has_type_and_both_ends() -> None:
    front, _ = render_gpt({15: (LINUX, 2048, 100)}, TOTAL)

    entry = front[2 * SECTOR + 14 * 128 :][:128]
    assert uuid.UUID(bytes_le=entry[:16]) == uuid.UUID(LINUX)
    assert struct.unpack_from("<QQ", entry, 32) == (2048, 2147)


def test_boot_loader_finds_its_next_part() -> None:
    sector, core = boot_sector(bytes(512)), boot_core(bytes(1024))

    assert len(sector) == 440
    assert struct.unpack_from("<Q", sector, 0x5C)[0] == 2048
    assert struct.unpack_from("<Q", core, 500)[0] == 2049


def test_partition_table_round_trips() -> None:
    front, _ = render_gpt({1: (LINUX, 4096, 100), 15: (LINUX, 2048, 8)}, TOTAL)

    assert read_table(front) == (
        Partition(number=1, kind=uuid.UUID(LINUX), offset=4096 * SECTOR, size=100 * SECTOR),
        Partition(number=15, kind=uuid.UUID(LINUX), offset=2048 * SECTOR, size=8 * SECTOR),
    )


@pytest.mark.parametrize(
    "front",
    [b"", bytes(TABLE_BYTES), render_gpt({}, TOTAL)[0][: TABLE_BYTES - 1]],
    ids=["empty", "zeros", "cut-short"],
)
def test_disk_without_a_partition_table_is_refused(front: bytes) -> None:
    with pytest.raises(ValueError, match="no GUID partition table"):
        read_table(front)


def test_invalid_partition_entries_are_ignored() -> None:
    """A hostile header may count entries that are not there, or give one no length."""
    front = bytearray(render_gpt({1: (LINUX, 4096, 100), 2: (LINUX, 2048, 8)}, TOTAL)[0])
    struct.pack_into("<I", front, SECTOR + 80, 0xFFFFFFFF)
    struct.pack_into("<QQ", front, 2 * SECTOR + 128 + 32, 4096, 0)

    assert [each.number for each in read_table(bytes(front))] == [1]

    struct.pack_into("<Q", front, SECTOR + 72, 1 << 60)
    assert read_table(bytes(front)) == ()

    struct.pack_into("<I", front, SECTOR + 84, 0)
    assert read_table(bytes(front)) == ()


@pytest.mark.parametrize("size", [0, 1, 127])
def test_entries_that_are_too_small_are_refused(size: int) -> None:
    front = bytearray(render_gpt({1: (LINUX, 4096, 100)}, TOTAL)[0])
    struct.pack_into("<II", front, SECTOR + 80, 0xFFFFFFFF, size)

    with pytest.raises(ValueError, match=f"has entries of {size} bytes, not of 128"):
        read_table(bytes(front))


def test_partitions_of_kernels_come_before_those_of_a_root() -> None:
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
