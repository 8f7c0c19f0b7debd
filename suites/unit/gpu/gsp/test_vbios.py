"""The image of the video BIOS."""

from __future__ import annotations

import struct

from harness.gpu.gsp.vbios import COMMAND, COMMAND_BUFFER, make_vbios, parse_version
from suites.unit.gpu.models import a_model

VERSION = "92.00.19.00.5B"


def test_vbios_version_is_parsed_into_a_32_bit_word_and_a_byte() -> None:
    assert parse_version(VERSION) == (0x92001900, 0x5B)


def test_video_bios_image_is_a_pci_rom_with_the_ids_of_the_gpu() -> None:
    image = make_vbios(a_model().pci, VERSION)
    (at,) = struct.unpack_from("<H", image, 0x18)

    assert image[:2] == b"\x55\xaa"
    assert struct.unpack_from("<4sHH", image, at) == (b"PCIR", 0x10DE, 0x2330)
    assert struct.unpack_from("<H", image, at + 0x10)[0] * 512 == len(image)
    assert image[at + 0x15] & 0x80


def test_bit_table_of_the_image_points_to_the_version_and_to_fwsec() -> None:
    image = make_vbios(a_model().pci, VERSION)
    table = image.index(b"BIT\0") - 2
    count = image[table + 10]
    tokens = {
        image[at]: struct.unpack_from("<H", image, at + 4)[0]
        for at in range(table + 12, table + 12 + 6 * count, 6)
    }

    assert sum(image[table : table + 12]) % 256 == 0
    assert struct.unpack_from("<IB", image, tokens[0x42]) == parse_version(VERSION)
    (falcons,) = struct.unpack_from("<I", image, tokens[0x70])
    applications = [image[falcons + 6 + 6 * index] for index in range(image[falcons + 3])]
    assert applications == [0x85, 0x45]
    (descriptor,) = struct.unpack_from("<I", image, falcons + 8)
    (kind,) = struct.unpack_from("<I", image, descriptor)
    assert kind & 0xFFFF == 0x0201
    # The data follows the descriptor and 512 bytes of code. The mapper is in the data.
    data = descriptor + (kind >> 16) + 0x200
    mapper = struct.unpack_from("<4s4xI", image, data + COMMAND - 0x2C)
    assert mapper == (b"DMAP", COMMAND_BUFFER)


def test_fwsec_data_of_a_signed_vbios_has_space_for_the_signature() -> None:
    image = make_vbios(a_model().pci, VERSION, is_signed=True)
    at = image.index(struct.pack("<I", 1 | 3 << 8 | (44 + 384) << 16))
    _, stored, signature, interfaces, _, code, _, _, data = struct.unpack_from("<9I", image, at)
    content = at + 44 + 384

    assert content + stored <= len(image)
    assert code + data == stored
    assert signature + 384 <= data
    mapper = content + code + interfaces + COMMAND - 0x2C
    assert struct.unpack_from("<4s4xI", image, mapper) == (b"DMAP", COMMAND_BUFFER)
    assert signature >= COMMAND_BUFFER + 0x40
