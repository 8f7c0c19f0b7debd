"""Disks from other hosts, and the name of the backing file in a qcow2's header."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.image.formats.qcow2 import (
    backing_name,
    has_absolute_backing,
    make_relative,
    read_header,
    virtual_bytes,
    why_unsafe_in_a_cache,
    why_unusable,
    with_backing_name,
)
from suites.unit.image.formats.small_qcow2 import CLUSTER, qcow2_on

if TYPE_CHECKING:
    from pathlib import Path


def test_backing_name_is_none_for_a_standalone_qcow2_and_for_a_file_that_is_not_qcow2(
    tmp_path: Path,
) -> None:
    assert backing_name(qcow2_on(tmp_path / "a", "")) is None
    for content in (b"", b"\0" * 4096):
        (tmp_path / "a").write_bytes(content)

        assert backing_name(tmp_path / "a") is None


def test_unreadable_name_of_a_backing_file_is_refused(tmp_path: Path) -> None:
    for at, length in ((128, 0xFFFFFFFF), (1 << 63, 4), (128, 0), (512, 4)):
        disk = qcow2_on(tmp_path / "a", "name", behind=bytes(400) + b"\xff\xff\xff\xff")
        raw = bytearray(disk.read_bytes())
        struct.pack_into(">QII", raw, 8, at, length, 0xFFFFFFFF)
        disk.write_bytes(bytes(raw[:512]) + b"\xff\xff\xff\xff")

        with pytest.raises(HarnessError, match=r"'.*/a' can't be read: \d+ bytes at \d+\."):
            backing_name(disk)
        with pytest.raises(HarnessError, match=r"'.*/a' has clusters of 2\^4294967295 bytes"):
            with_backing_name(disk, "b")


def test_new_header_differs_only_in_the_name_of_the_backing_file(tmp_path: Path) -> None:
    for name in ("b", "a-longer-name-than-the-old.one"):
        disk = qcow2_on(tmp_path / "a", "/cache/disk.qcow2")

        start = with_backing_name(disk, name)

        assert start == qcow2_on(tmp_path / "b", name).read_bytes()[:CLUSTER]
        assert backing_name(disk) == "/cache/disk.qcow2"


def test_backing_file_name_that_does_not_fit_into_the_header_is_refused(tmp_path: Path) -> None:
    full = qcow2_on(tmp_path / "a", "short", behind=b"\0\0precious")
    with pytest.raises(HarnessError, match="has no space in its header for the backing file"):
        with_backing_name(full, "much longer")

    # No name may be longer than a cluster.
    with pytest.raises(HarnessError, match="qemu-img convert"):
        with_backing_name(qcow2_on(tmp_path / "b", "short"), "x" * CLUSTER)


def test_path_of_a_backing_file_in_the_cache_is_relative_to_the_published_folder(
    tmp_path: Path,
) -> None:
    elsewhere = str(tmp_path / "elsewhere/disk.qcow2")
    for path, expected in (
        ("cache/checkpoints/parent/disk.qcow2", "../parent/disk.qcow2"),
        ("cache/images/debian/disk.qcow2", "../../images/debian/disk.qcow2"),
        (elsewhere, elsewhere),
    ):
        disk = qcow2_on(tmp_path / "disk", str(tmp_path / path))

        make_relative(disk, published=tmp_path / "cache/checkpoints/child")

        assert backing_name(disk) == expected


def test_make_relative_does_not_change_a_disk_without_a_backing_file(tmp_path: Path) -> None:
    disk = qcow2_on(tmp_path / "disk", "")
    before = disk.read_bytes()

    make_relative(disk, published=tmp_path / "cache/checkpoints/child")

    assert disk.read_bytes() == before


def a_disk(
    path: Path, *, version: int = 3, backing_at: int = 0, method: int = 0, size: int = 1 << 30,
    features: int = 0, tables: int = 4,
) -> Path:  # fmt: skip
    """Write a qcow2 of 4096 bytes, whose table of `tables` entries begins at 4064."""
    header = struct.pack(
        ">4sIQIIQIIQQIIQ",
        b"QFI\xfb",
        version,
        backing_at,
        0,
        16,
        size,
        method,
        tables,
        4064,
        0,
        0,
        0,
        0,
    )
    path.write_bytes((header + struct.pack(">Q", features)).ljust(4096, b"\0"))
    return path


def test_qcow2_that_is_truncated_or_encrypted_or_refers_to_other_files_is_unusable(
    tmp_path: Path,
) -> None:
    usable: tuple[dict[str, int], ...] = (
        {"version": 2},
        # At the position of version 3's features, version 2 has other fields.
        {"version": 2, "features": 4},
        {"features": 1},
    )
    for fields in usable:
        assert why_unusable(a_disk(tmp_path / "disk", **fields)) is None, fields
    unusable: tuple[tuple[dict[str, int], str], ...] = (
        ({"version": 4}, "is a qcow2 of version 4"),
        ({"backing_at": 104, "method": 1}, "has a backing file"),
        ({"features": 4}, "has an external data file"),
        ({"method": 1}, "is encrypted"),
        ({"size": 0}, "contains a disk of 0 bytes"),
        ({"tables": 5}, "ends after 4096 bytes, so it is truncated"),
    )
    for fields, why in unusable:
        assert str(why_unusable(a_disk(tmp_path / "disk", **fields))).startswith(why), fields


def test_backing_file_of_a_disk_from_a_store_must_be_a_disk_in_the_caches(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    for name in ("", "../debian-12-0a1b/disk.qcow2", "../../images/debian-12.1-0a1b/disk.qcow2"):
        assert why_unsafe_in_a_cache(qcow2_on(disk, name)) is None, name
    for name in (
        *("/etc/shadow", "/cache/images/a/disk.qcow2", "disk.qcow2", "a/disk.qcow2", "../a/ram"),
        *("../../../disk.qcow2", "../../../images/a/disk.qcow2", "../../a/../b/disk.qcow2"),
        *("../../images/../disk.qcow2", "../../images/a/b/disk.qcow2", "../a/disk.qcow2\n"),
        *("json:{}", "nbd://host/disk.qcow2", "fat:../a/disk.qcow2", "../.a/disk.qcow2"),
    ):
        reason = why_unsafe_in_a_cache(qcow2_on(disk, name))
        assert reason is not None, name
        assert reason.startswith("has the backing file '"), name
        assert "\n" not in reason
    assert why_unsafe_in_a_cache(a_disk(disk, features=4)) == "has an external data file"


def test_raw_file_is_usable_only_with_a_partition_table(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(510) + b"\x55\xaa" + bytes(512))
    assert why_unusable(disk) is None

    for content, why in (
        (b"", "is empty"),
        (bytes(510) + b"\x55\xaa" + bytes(511), "is neither"),
        (bytes(1024), "is neither"),
        (b"QFI\xfb", "is neither"),
    ):
        disk.write_bytes(content)

        assert str(why_unusable(disk)).startswith(why)


def test_virtual_size_is_the_size_of_the_disk_and_not_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(1536))

    assert virtual_bytes(a_disk(tmp_path / "disk", size=5 << 30)) == 5 << 30
    assert virtual_bytes(tmp_path / "raw") == 1536
    assert read_header(tmp_path / "raw") is None


def test_absolute_path_of_a_backing_file_is_distinguished_from_a_relative_path(
    tmp_path: Path,
) -> None:
    names = {"/cache/disk": True, "../images/disk": False, "": False, "disk/": False}

    for name, is_absolute in names.items():
        assert has_absolute_backing(qcow2_on(tmp_path / "a", name)) is is_absolute
