"""The name of a backing file in a qcow2's header."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.image.formats.qcow2 import backing_name, make_relative, with_backing_name
from suites.unit.image.formats.small_qcow2 import CLUSTER, qcow2_on

if TYPE_CHECKING:
    from pathlib import Path


def test_name_is_read(tmp_path: Path) -> None:
    assert backing_name(qcow2_on(tmp_path / "a", "/cache/disk.qcow2")) == "/cache/disk.qcow2"


@pytest.mark.parametrize("content", [b"", b"raw", b"\0" * 4096])
def test_file_that_is_not_qcow2_names_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)

    assert backing_name(tmp_path / "a") is None


@pytest.mark.parametrize(("at", "length"), [(128, 0xFFFFFFFF), (1 << 63, 4), (128, 0), (512, 4)])
def test_name_that_can_not_be_read_is_told(tmp_path: Path, at: int, length: int) -> None:
    disk = qcow2_on(tmp_path / "a", "name", behind=bytes(400) + b"\xff\xff\xff\xff")
    raw = bytearray(disk.read_bytes())
    struct.pack_into(">QII", raw, 8, at, length, 0xFFFFFFFF)
    disk.write_bytes(bytes(raw[:512]) + b"\xff\xff\xff\xff")

    with pytest.raises(HarnessError, match=r"'.*/a' can't be read: \d+ bytes at \d+\."):
        backing_name(disk)
    with pytest.raises(HarnessError, match=r"'.*/a' has clusters of 2\^4294967295 bytes"):
        with_backing_name(disk, "b")


def test_disk_that_stands_alone_names_nothing(tmp_path: Path) -> None:
    assert backing_name(qcow2_on(tmp_path / "a", "")) is None


@pytest.mark.parametrize("name", ["b", "/cache/disk.qcow2", "a-longer-name-than-the-old.one"])
def test_other_name_changes_nothing_else(tmp_path: Path, name: str) -> None:
    disk = qcow2_on(tmp_path / "a", "/cache/disk.qcow2")

    start = with_backing_name(disk, name)

    assert start == qcow2_on(tmp_path / "b", name).read_bytes()[:CLUSTER]
    assert backing_name(disk) == "/cache/disk.qcow2"


def test_name_that_would_overwrite_something_is_refused(tmp_path: Path) -> None:
    disk = qcow2_on(tmp_path / "a", "short", behind=b"\0\0precious")

    with pytest.raises(HarnessError, match="has no space in its header for the backing file"):
        with_backing_name(disk, "much longer")


def test_name_longer_than_the_cluster_is_refused(tmp_path: Path) -> None:
    disk = qcow2_on(tmp_path / "a", "short")

    with pytest.raises(HarnessError, match="qemu-img convert"):
        with_backing_name(disk, "x" * CLUSTER)


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("cache/checkpoints/parent/disk.qcow2", "../parent/disk.qcow2"),
        ("cache/images/debian/disk.qcow2", "../../images/debian/disk.qcow2"),
        ("elsewhere/disk.qcow2", None),
    ],
)
def test_disk_of_the_cache_is_named_from_the_published_folder(
    tmp_path: Path, below: str, expected: str | None
) -> None:
    disk = qcow2_on(tmp_path / "disk", str(tmp_path / below))

    make_relative(disk, published=tmp_path / "cache/checkpoints/child")

    assert backing_name(disk) == (expected or str(tmp_path / below))


def test_standalone_disk_stays_unchanged(tmp_path: Path) -> None:
    disk = qcow2_on(tmp_path / "disk", "")
    before = disk.read_bytes()

    make_relative(disk, published=tmp_path / "cache/checkpoints/child")

    assert disk.read_bytes() == before
