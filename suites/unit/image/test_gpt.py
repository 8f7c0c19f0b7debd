"""The partition table of the image that e2e tests make, byte by byte (UEFI specification, 5.3)."""

from __future__ import annotations

import struct
import uuid
import zlib

from suites.e2e.stock.maker import SECTOR, boot_core, boot_sector, render_gpt

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


def test_entry_says_type_and_both_ends() -> None:
    front, _ = render_gpt({15: (LINUX, 2048, 100)}, TOTAL)

    entry = front[2 * SECTOR + 14 * 128 :][:128]
    assert uuid.UUID(bytes_le=entry[:16]) == uuid.UUID(LINUX)
    assert struct.unpack_from("<QQ", entry, 32) == (2048, 2147)


def test_boot_loader_finds_its_next_part() -> None:
    sector, core = boot_sector(bytes(512)), boot_core(bytes(1024))

    assert len(sector) == 440
    assert struct.unpack_from("<Q", sector, 0x5C)[0] == 2048
    assert struct.unpack_from("<Q", core, 500)[0] == 2049
