"""The first bytes of a qcow2, as its specification has them (QEMU, docs/interop/qcow2.txt)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import Runner

MAGIC = b"QFI\xfb"
_HEADER = struct.Struct(">4sIQIIQIIQ")
#: Of it what tells where the backing file is named.
_BEGINNING = struct.Struct(">4sIQIIQ")
_VERSIONS = (2, 3)
_FEATURES = struct.Struct(">Q")
_FEATURES_AT = 72
_EXTERNAL_DATA = 1 << 2
_ENTRY_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Qcow2Header:
    """What of a header decides whether and how a disk can be used."""

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
    """Return what the header says, or nothing where the file is no qcow2."""
    with path.open("rb") as source:
        start = source.read(_FEATURES_AT + _FEATURES.size)
    if len(start) < _HEADER.size or not start.startswith(MAGIC):
        return None
    _, version, backing_at, _, _, size, method, tables, table_at = _HEADER.unpack_from(start)
    # Version 2 has no field for features.
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


def why_unusable(path: Path) -> str | None:
    """Return why a disk that came from elsewhere can't or must not be used, or None.

    QEMU would open whatever file of this host the header names as its backing or data file.
    """
    size = path.stat().st_size
    header = read_header(path)
    if header is None:
        return (
            "is no qcow2 image; convert it with `qemu-img convert -O qcow2`"
            if size
            else "is empty"
        )
    troubles = (
        (header.version not in _VERSIONS, f"is a qcow2 of version {header.version}, not 2 or 3"),
        (header.has_backing_file, "names a backing file, and so is only a part of an image"),
        (header.has_data_file, "names an external data file, and so is only a part of an image"),
        (header.is_encrypted, "is encrypted; decrypt it with `qemu-img convert`"),
        (header.virtual_bytes == 0, "holds a disk of 0 bytes"),
        (header.table_end > size, f"ends after {size} bytes, and so was cut short"),
    )
    return next((why for is_so, why in troubles if is_so), None)


def flatten(disk: Path, to: Path, *, runner: Runner, timeout_s: float) -> None:
    """Write a qcow2 that depends on no other file; raises HarnessError with qemu-img's words."""
    result = runner.run(
        ["qemu-img", "convert", "-f", "qcow2", "-O", "qcow2", str(disk), str(to)],
        timeout_s=timeout_s,
    )
    if not result.ok:
        raise HarnessError(f"Could not write the disk '{disk}' to '{to}'.\n{result.render()}")


def backing_name(path: Path) -> str | None:
    """Return what a qcow2 calls the file below it, or nothing where there is none."""
    with path.open("rb") as source:
        start = source.read(_BEGINNING.size)
        if len(start) < _BEGINNING.size or not start.startswith(MAGIC):
            return None
        _, _, at, length, _, _ = _BEGINNING.unpack(start)
        if not at:
            return None
        source.seek(at)
        return source.read(length).decode()


def with_backing_name(path: Path, name: str) -> bytes:
    """Return how a qcow2 with a backing file begins once that is called `name`; writes nothing.

    The name stands in the first cluster behind the header's extensions, with nothing after it.
    Raises HarnessError where a longer one has no room there.
    """
    with path.open("rb") as source:
        start = source.read(_BEGINNING.size)
        magic, version, at, length, bits, size = _BEGINNING.unpack(start)
        source.seek(0)
        cluster = bytearray(source.read(1 << bits))
    new = name.encode()
    end = at + len(new)
    if end > len(cluster) or any(cluster[at + length : end]):
        raise HarnessError(
            f"The disk '{path}' has no room in its header to call its backing file '{name}'; "
            f"rewrite it by `qemu-img convert -O qcow2 -B '{backing_name(path)}' -F qcow2`."
        )
    cluster[at : at + length] = bytes(length)
    cluster[at:end] = new
    _BEGINNING.pack_into(cluster, 0, magic, version, at, len(new), bits, size)
    return bytes(cluster)
