"""Makes the beginning of a qcow2 file, with the name of its backing file."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from harness.image.formats.qcow2 import MAGIC

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = 1 << 9
_HEAD = struct.Struct(">4sIQIIQ")
AT = 128


def qcow2_on(path: Path, name: str, *, behind: bytes = b"") -> Path:
    """Write a qcow2 with the backing file `name`, or without a backing file."""
    cluster = bytearray(CLUSTER)
    at = AT if name else 0
    _HEAD.pack_into(cluster, 0, MAGIC, 3, at, len(name), 9, 1 << 30)
    tail = name.encode() + behind
    cluster[AT : AT + len(tail)] = tail
    path.write_bytes(bytes(cluster) + b"data")
    return path
