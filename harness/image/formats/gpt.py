"""Reads a disk's GUID partition table (UEFI specification, section 5.3)."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass

SECTOR = 512
#: The size of the protective MBR, the header, and 128 entries, the fewest that a table may have.
TABLE_BYTES = 34 * SECTOR

_HEADER = struct.Struct("<8sIIIIQQQQ16sQII")
_ENTRY = struct.Struct("<16s16sQQ")
_ENTRY_BYTES = 128

#: Types of partitions that may contain kernels (systemd's Discoverable Partitions).
EXTENDED_BOOT = uuid.UUID("BC13C2FF-59E6-4262-A352-B275FD6F7172")
ROOT_X86_64 = uuid.UUID("4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709")
LINUX = uuid.UUID("0FC63DAF-8483-4772-8E79-3D69D8477DE4")


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One partition. `offset` and `size` are in bytes, from the beginning of the disk."""

    number: int
    kind: uuid.UUID
    offset: int
    size: int


def read_table(front: bytes) -> tuple[Partition, ...]:
    """Return the partitions, sorted by number, from a disk's first `TABLE_BYTES`.

    Raises ValueError if there is no table, or if the entries have an unexpected size.
    """
    if len(front) < TABLE_BYTES or front[SECTOR : SECTOR + 8] != b"EFI PART":
        raise ValueError("It has no GUID partition table")
    *_, table_at, count, entry_bytes = _HEADER.unpack_from(front, SECTOR)
    if entry_bytes < _ENTRY_BYTES and table_at * SECTOR < len(front):
        raise ValueError(
            f"Its GUID partition table has entries of {entry_bytes} bytes, but an entry needs 128 bytes"
        )
    partitions = []
    for index in range(count):
        at = table_at * SECTOR + index * entry_bytes
        if at + _ENTRY.size > len(front):
            break
        kind, _, first, last = _ENTRY.unpack_from(front, at)
        if any(kind) and last >= first:
            partitions.append(
                Partition(
                    number=index + 1,
                    kind=uuid.UUID(bytes_le=kind),
                    offset=first * SECTOR,
                    size=(last - first + 1) * SECTOR,
                )
            )
    return tuple(partitions)


def boot_candidates(partitions: tuple[Partition, ...]) -> tuple[Partition, ...]:
    """Return the partitions that may have kernels, dedicated boot partitions first."""
    order = (EXTENDED_BOOT, ROOT_X86_64, LINUX)
    return tuple(
        sorted(
            (each for each in partitions if each.kind in order),
            key=lambda each: (order.index(each.kind), each.number),
        )
    )
