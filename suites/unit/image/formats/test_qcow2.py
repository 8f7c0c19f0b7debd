"""The name of a backing file in a qcow2's header."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.image.formats.qcow2 import MAGIC, backing_name, with_backing_name

if TYPE_CHECKING:
    from pathlib import Path

_CLUSTER = 1 << 9
_HEAD = struct.Struct(">4sIQIIQ")
_AT = 128


def _qcow2(path: Path, name: str, *, behind: bytes = b"") -> Path:
    cluster = bytearray(_CLUSTER)
    at = _AT if name else 0
    _HEAD.pack_into(cluster, 0, MAGIC, 3, at, len(name), 9, 1 << 30)
    tail = name.encode() + behind
    cluster[_AT : _AT + len(tail)] = tail
    path.write_bytes(bytes(cluster) + b"data")
    return path


def test_name_is_read(tmp_path: Path) -> None:
    assert backing_name(_qcow2(tmp_path / "a", "/cache/disk.qcow2")) == "/cache/disk.qcow2"


@pytest.mark.parametrize("content", [b"", b"raw", b"\0" * 4096])
def test_what_is_no_qcow2_names_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)

    assert backing_name(tmp_path / "a") is None


def test_disk_that_stands_alone_names_nothing(tmp_path: Path) -> None:
    assert backing_name(_qcow2(tmp_path / "a", "")) is None


@pytest.mark.parametrize("name", ["b", "/cache/disk.qcow2", "a-longer-name-than-the-old.one"])
def test_other_name_changes_nothing_else(tmp_path: Path, name: str) -> None:
    disk = _qcow2(tmp_path / "a", "/cache/disk.qcow2")

    start = with_backing_name(disk, name)

    assert start == _qcow2(tmp_path / "b", name).read_bytes()[:_CLUSTER]
    assert backing_name(disk) == "/cache/disk.qcow2"


def test_name_that_would_run_into_something_is_refused(tmp_path: Path) -> None:
    disk = _qcow2(tmp_path / "a", "short", behind=b"\0\0precious")

    with pytest.raises(HarnessError, match="has no space in its header for the backing file"):
        with_backing_name(disk, "much longer")


def test_name_longer_than_the_cluster_is_refused(tmp_path: Path) -> None:
    disk = _qcow2(tmp_path / "a", "short")

    with pytest.raises(HarnessError, match="qemu-img convert"):
        with_backing_name(disk, "x" * _CLUSTER)
