"""Reads and changes the header of a qcow2 file (docs/interop/qcow2.txt in QEMU's source)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.visible_text import shortened, visible_line

if TYPE_CHECKING:
    from harness.provisioning.command import Runner

MAGIC = b"QFI\xfb"
_HEADER = struct.Struct(">4sIQIIQIIQ")
#: The first fields of the header, including the position of the backing file's name.
_BEGINNING = struct.Struct(">4sIQIIQ")
_VERSIONS = (2, 3)
_FEATURES = struct.Struct(">Q")
_FEATURES_AT = 72
_EXTERNAL_DATA = 1 << 2
_ENTRY_BYTES = 8
_LONGEST_NAME = 1023
_CLUSTER_BITS = range(9, 22)
_SHOWN_BYTES = 200
#: The path from a folder of a cache to the disk in another folder of the same or another cache.
_IN_A_CACHE = re.compile(r"\.\./(?:\.\./[\w-]+/)?[\w-][\w.-]*/disk\.qcow2")
#: The end of a boot sector; both MBR and GPT disks have a boot sector.
_BOOT_SIGNATURE = b"\x55\xaa"
_SECTOR = 512


@dataclass(frozen=True, kw_only=True)
class Qcow2Header:
    """The header fields that decide whether and how a disk can be used."""

    version: int
    virtual_bytes: int
    has_backing_file: bool
    has_data_file: bool
    is_encrypted: bool
    table_end: int


def is_qcow2(path: Path) -> bool:
    with path.open("rb") as source:
        return source.read(len(MAGIC)) == MAGIC


def read_header(path: Path) -> Qcow2Header | None:
    """Return the header, or None if the file is not a qcow2."""
    with path.open("rb") as source:
        start = source.read(_FEATURES_AT + _FEATURES.size)
    if len(start) < _HEADER.size or not start.startswith(MAGIC):
        return None
    _, version, backing_at, _, _, size, method, tables, table_at = _HEADER.unpack_from(start)
    # The header of version 2 has no field for features.
    features = (
        _FEATURES.unpack_from(start, _FEATURES_AT)[0]
        if version >= 3 and len(start) >= _FEATURES_AT + _FEATURES.size
        else 0
    )
    return Qcow2Header(
        version=version,
        virtual_bytes=size,
        has_backing_file=backing_at != 0,
        has_data_file=bool(features & _EXTERNAL_DATA),
        is_encrypted=method != 0,
        table_end=table_at + tables * _ENTRY_BYTES,
    )


def virtual_bytes(path: Path) -> int:
    """Return the size of the disk in a qcow2 or raw file."""
    header = read_header(path)
    return path.stat().st_size if header is None else header.virtual_bytes


def why_unusable(path: Path) -> str | None:
    """Return why a disk from another host is unusable or unsafe, or None if the disk can be used.

    A raw file is accepted as a disk only if it has partitions, since any file could be a raw disk.
    A backing file or data file in a qcow2 header is refused, since QEMU would open any file of this
    host with that name.
    """
    size = path.stat().st_size
    header = read_header(path)
    if header is None:
        if not size:
            return "is empty"
        if not is_qcow2(path) and size % _SECTOR == 0 and _has_boot_signature(path):
            return None
        return (
            "is neither a qcow2 image nor a raw disk with partitions; convert it with "
            "`qemu-img convert -O qcow2`"
        )
    problems = (
        (header.version not in _VERSIONS, f"is a qcow2 of version {header.version}, not 2 or 3"),
        (header.has_backing_file, "has a backing file, so it is only a part of an image"),
        (header.has_data_file, "has an external data file, so it is only a part of an image"),
        (header.is_encrypted, "is encrypted; decrypt it with `qemu-img convert`"),
        (header.virtual_bytes == 0, "contains a disk of 0 bytes"),
        (header.table_end > size, f"ends after {size} bytes, so it is truncated"),
    )
    return next((problem for applies, problem in problems if applies), None)


def _has_boot_signature(path: Path) -> bool:
    with path.open("rb") as source:
        return source.read(_SECTOR).endswith(_BOOT_SIGNATURE)


def flatten(disk: Path, to: Path, *, runner: Runner, timeout_s: float) -> None:
    """Write a qcow2 without a backing file; raises HarnessError with the output of qemu-img."""
    result = runner.run(
        ["qemu-img", "convert", "-f", "qcow2", "-O", "qcow2", str(disk), str(to)],
        timeout_s=timeout_s,
    )
    if not result.ok:
        raise HarnessError(f"Could not write the disk '{disk}' to '{to}'.\n{result.render()}")


def backing_name(path: Path) -> str | None:
    """Return the name of a qcow2's backing file, or None; raises HarnessError for an unreadable name."""
    with path.open("rb") as source:
        start = source.read(_BEGINNING.size)
        if len(start) < _BEGINNING.size or not start.startswith(MAGIC):
            return None
        _, _, at, length, _, _ = _BEGINNING.unpack(start)
        if not at:
            return None
        name = b""
        if length <= _LONGEST_NAME and at < path.stat().st_size:
            source.seek(at)
            name = source.read(length)
    try:
        if name:
            return name.decode()
    except UnicodeDecodeError:
        pass
    raise HarnessError(
        f"The name of the backing file in the header of the disk '{path}' can't be read: {length} bytes at "
        f"{at}. The disk is damaged; remove the disk."
    )


def has_absolute_backing(path: Path) -> bool:
    """Return whether the name of a disk's backing file is an absolute path."""
    name = backing_name(path)
    return name is not None and name.startswith("/")


def why_unsafe_in_a_cache(path: Path) -> str | None:
    """Return why a qcow2 that another host made for a folder of a cache is unsafe, or None.

    QEMU opens each file that the header names. The header may name only a disk in another folder
    of the caches, as `make_relative` writes the name.
    """
    header = read_header(path)
    if header is None:
        return None
    if header.has_data_file:
        return "has an external data file"
    name = backing_name(path)
    if name is None or _IN_A_CACHE.fullmatch(name):
        return None
    return f"has the backing file '{visible_line(shortened(name, _SHOWN_BYTES))}'"


def make_relative(disk: Path, *, published: Path) -> None:
    """Change the backing file's name to a relative path, for a disk that will be in `published`.

    With relative paths, a cache can be moved, and its files have the same bytes on all hosts.
    `published` is a folder in one of the caches. The absolute path of a backing file outside of the
    caches is not changed.
    """
    name = backing_name(disk)
    if name is None or not name.startswith("/"):
        return
    cache = published.parent.resolve()
    for top, up in ((cache, ".."), (cache.parent, "../..")):
        if Path(name).is_relative_to(top):
            start = with_backing_name(disk, f"{up}/{Path(name).relative_to(top)}")
            with disk.open("r+b") as file:
                file.write(start)
            return


def with_backing_name(path: Path, name: str) -> bytes:
    """Return the first cluster of a qcow2, with `name` as the name of the backing file. Write nothing.

    The name is in the first cluster, after the header's extensions and before zeros. Raises
    HarnessError if `name` does not fit there.
    """
    with path.open("rb") as source:
        start = source.read(_BEGINNING.size)
        magic, version, at, length, bits, size = _BEGINNING.unpack(start)
        if bits not in _CLUSTER_BITS:
            raise HarnessError(f"The disk '{path}' has clusters of 2^{bits} bytes; it is damaged.")
        source.seek(0)
        cluster = bytearray(source.read(1 << bits))
    new = name.encode()
    end = at + len(new)
    if end > len(cluster) or any(cluster[at + length : end]):
        raise HarnessError(
            f"The disk '{path}' has no space in its header for the backing file's name '{name}'; "
            f"rewrite it by `qemu-img convert -O qcow2 -B '{backing_name(path)}' -F qcow2`."
        )
    cluster[at : at + length] = bytes(length)
    cluster[at:end] = new
    _BEGINNING.pack_into(cluster, 0, magic, version, at, len(new), bits, size)
    return bytes(cluster)
