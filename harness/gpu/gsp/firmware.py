"""Makes a firmware file that NVIDIA's driver accepts for an emulated GPU.

The driver reads an ELF file. The driver compares one section of the file with its own version, and
copies an image and the chip's signature into memory. A real GPU's system processor then runs the
image; the emulated processor runs nothing. The names of sections and files are in the open kernel
modules (`g_kernel_gsp_nvoc.h`, `nv-firmware.h`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The firmware files, and the chip families for which each file has signatures.
FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "gsp_tu10x.bin": ("tu10x", "tu11x", "ga100"),
    "gsp_ga10x.bin": ("ga10x", "ad10x", "gh100"),
}

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_IDENT: Final = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
_RISC_V: Final = 243
_PROGRAM_BITS, _STRING_TABLE = 1, 3
#: The size of a signature; the driver allocates memory of this size.
_SIGNATURE_BYTES: Final = 256
_IMAGE: Final = b"This file has no program: an emulated GPU runs none.".ljust(4096, b"\0")


def make_firmware(release: str, families: tuple[str, ...]) -> bytes:
    """Return the file for one release of the driver, and for chips of these families."""
    sections = {
        ".fwversion": release.encode() + b"\0",
        ".fwimage": _IMAGE,
        **{f".fwsignature_{family}": bytes(_SIGNATURE_BYTES) for family in families},
    }
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    body = bytearray()
    headers = [bytes(_SECTION.size)]
    for name, content in {**sections, ".shstrtab": names}.items():
        kind = _STRING_TABLE if name == ".shstrtab" else _PROGRAM_BITS
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        start = _HEADER.size + len(body)
        headers.append(_SECTION.pack(at, kind, 0, 0, start, len(content), 0, 0, 16, 0))
        body += content.ljust(-(-len(content) // 16) * 16, b"\0")
    header = _HEADER.pack(
        *(_IDENT, 1, _RISC_V, 1, 0, 0, _HEADER.size + len(body), 0),
        *(_HEADER.size, 0, 0, _SECTION.size, len(headers), len(headers) - 1),
    )
    return header + bytes(body) + b"".join(headers)
