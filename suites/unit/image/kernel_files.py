"""Makes the parts of a kernel's files that the harness reads."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "6.1.0-56-cloud-amd64"


def a_vmlinuz(file: Path, version: str = VERSION) -> Path:
    """Write a bzImage header whose version text is at 0x500: the field's 0x300, plus 0x200."""
    header = bytearray(0x600)
    header[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", header, 0x20E, 0x300)
    text = f"{version} (builder@host) #1 SMP Debian 6.1\0".encode()
    header[0x500 : 0x500 + len(text)] = text
    file.write_bytes(header)
    return file
