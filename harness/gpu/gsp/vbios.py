"""Makes a video BIOS image with the parts that NVIDIA's driver reads, and without code.

The formats are in `src/nvidia/src/kernel/gpu/gsp/arch/turing/kernel_gsp_vbios_tu102.c` and
`kernel_gsp_fwsec.c` of the open kernel modules: a PCI ROM that contains NVIDIA's BIT table and one
descriptor of FWSEC. A real GPU runs this firmware in its security processor.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from harness.gpu import PciIdentity

SIZE: Final = 0x1000
_PCI_DATA: Final = 0x40
_BIT: Final = 0x80
_BIOS_DATA: Final = 0x100
_FALCON_DATA: Final = 0x110
_FALCON_TABLE: Final = 0x120
_DESCRIPTOR: Final = 0x140
_DESCRIPTOR_BYTES: Final = 60
_CODE_BYTES: Final = 0x200
_DATA_BYTES: Final = 0x100
#: From GA102 on, a signature follows the descriptor; the signature is also copied into the data.
_SIGNED_DESCRIPTOR_BYTES: Final = 44
_SIGNATURE_BYTES: Final = 384
_SIGNED_DATA_BYTES: Final = 0x300

#: Application ids of FWSEC in the table of falcon programs: for production GPUs, and for debug
#: GPUs.
_FWSEC_APPLICATIONS: Final = (0x85, 0x45)

#: Offsets in FWSEC's data; the mapper contains the address of FWSEC's command buffer.
MAPPER: Final = 0x40
COMMAND: Final = MAPPER + 0x2C
COMMAND_BUFFER: Final = 0x80
_COMMAND_BUFFER_BYTES: Final = 0x40


def parse_version(text: str) -> tuple[int, int]:
    """Parse a version such as "92.00.19.00.5B" into version (a word) and OEM version (a byte)."""
    first, second, third, fourth, oem = (int(part, 16) for part in text.split("."))
    return first << 24 | second << 16 | third << 8 | fourth, oem


def make_vbios(identity: PciIdentity, version: str, *, is_signed: bool = False) -> bytes:
    """Return the image for a GPU; `version` has nvidia-smi's format, such as "92.00.19.00.5B".

    With `is_signed`, the image is for GA102 and later, and FWSEC has a signature; the signature
    has only zeros, since nothing verifies it.
    """
    image = bytearray(SIZE)
    image[0:2] = b"\x55\xaa"
    struct.pack_into("<H", image, 0x18, _PCI_DATA)
    _put_pci_data(image, identity)
    tokens = (
        struct.pack("<BBHH", 0x42, 2, 8, _BIOS_DATA),
        struct.pack("<BBHH", 0x70, 2, 4, _FALCON_DATA),
    )
    header = struct.pack("<HIHBBB", 0xB8FF, 0x00544942, 0x100, 12, 6, len(tokens))
    table = header + bytes([-sum(header) & 0xFF]) + b"".join(tokens)
    image[_BIT : _BIT + len(table)] = table
    struct.pack_into("<IB", image, _BIOS_DATA, *parse_version(version))
    struct.pack_into("<I", image, _FALCON_DATA, _FALCON_TABLE)
    entries = b"".join(
        struct.pack("<BBI", application, 1, _DESCRIPTOR) for application in _FWSEC_APPLICATIONS
    )
    size = _SIGNED_DESCRIPTOR_BYTES if is_signed else _DESCRIPTOR_BYTES
    head = struct.pack("<6B", 1, 6, 6, len(_FWSEC_APPLICATIONS), 2, size)
    image[_FALCON_TABLE : _FALCON_TABLE + len(head) + len(entries)] = head + entries
    code = _put_signed_descriptor(image) if is_signed else _put_descriptor(image)
    _put_data(image, code + _CODE_BYTES)
    return bytes(image)


def _put_pci_data(image: bytearray, identity: PciIdentity) -> None:
    struct.pack_into(
        "<4sHHHHB3sHHBB",
        image,
        _PCI_DATA,
        b"PCIR",
        identity.vendor,
        identity.device,
        0,
        0x18,
        0,
        identity.class_code.to_bytes(3, "little"),
        SIZE // 512,
        0,
        0,
        # The flag that marks the last image in the ROM.
        0x80,
    )


def _put_descriptor(image: bytearray) -> int:
    """Write FWSEC's descriptor, and return the offset of FWSEC's code."""
    descriptor = (
        # A flag that the version is valid; version 2; the descriptor's size.
        1 | 2 << 8 | _DESCRIPTOR_BYTES << 16,
        # Stored and uncompressed size, virtual entry.
        *(0x400, 0x400, 0),
        # The offset of the interface table in the data.
        0,
        # Code: physical base, load size, virtual base; secure base and size.
        *(0, _CODE_BYTES, 0),
        *(0x100, 0x100),
        # Data: offset, physical base, load size; alternative sizes of code and data.
        *(_CODE_BYTES, 0, _DATA_BYTES),
        *(_CODE_BYTES, _DATA_BYTES),
    )
    struct.pack_into("<15I", image, _DESCRIPTOR, *descriptor)
    return _DESCRIPTOR + _DESCRIPTOR_BYTES


def _put_signed_descriptor(image: bytearray) -> int:
    """Write FWSEC's descriptor for GA102 and later, and return the offset of FWSEC's code."""
    size = _SIGNED_DESCRIPTOR_BYTES + _SIGNATURE_BYTES
    struct.pack_into(
        "<9IHBBHH",
        image,
        _DESCRIPTOR,
        # A flag that the version is valid; version 3; the descriptor's size.
        1 | 3 << 8 | size << 16,
        _CODE_BYTES + _SIGNED_DATA_BYTES,
        # Offsets in the data: of the signature, of the interface table.
        _DATA_BYTES,
        0,
        # Code: physical base, load size, virtual base. Data: physical base, load size.
        *(0, _CODE_BYTES, 0),
        *(0, _SIGNED_DATA_BYTES),
        # The engine (GSP); the program's number; one signature, for fuse version 0.
        *(0x0400, 9, 1, 1, 0),
    )
    return _DESCRIPTOR + size


def _put_data(image: bytearray, data: int) -> None:
    """Write FWSEC's data at `data`: the table of its interfaces, and the mapper."""
    # The interface table: version 1, header of 4 bytes, entries of 8 bytes; the last entry is the mapper (4).
    struct.pack_into("<4BIIII", image, data, 1, 4, 8, 2, 1, MAPPER, 4, MAPPER)
    mapper = struct.pack(
        "<4sHHIIII", b"DMAP", 3, 64, COMMAND_BUFFER, _COMMAND_BUFFER_BYTES, 0xC0, 0x10
    )
    image[data + MAPPER : data + MAPPER + len(mapper)] = mapper
