"""The memory that FWSEC reserves, for each way in which drivers load FWSEC."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from harness.gpu.gsp.fwsec import FwsecLoader
from harness.gpu.gsp.vbios import COMMAND, COMMAND_BUFFER

if TYPE_CHECKING:
    from harness.gpu.gsp.guest_memory import GuestMemory

CONTROL, DATA = 0x1101C0, 0x1101C4
BASE, BASE_HIGH, TO, FROM, TRANSFER = 0x110110, 0x110128, 0x110114, 0x11011C, 0x110118
HIGH = 0x12_3456_7000


class FakeGuest:
    """Plays a guest whose memory has FWSEC's data at these addresses."""

    def __init__(self, **commands: int) -> None:
        self.contents = {}
        for at, command in commands.items():
            data = bytearray(0x100)
            struct.pack_into("<I", data, COMMAND, command)
            struct.pack_into("<II", data, COMMAND_BUFFER + 0x20, 0x100, 0x20)
            self.contents[int(at.removeprefix("at_"), 16)] = bytes(data)

    def read(self, address: int, size: int) -> bytes:
        return self.contents[address][:size]


def a_guest(**commands: int) -> GuestMemory:
    guest: Any = FakeGuest(**commands)
    return guest  # type: ignore[no-any-return]


def describe(loader: FwsecLoader, address: int) -> None:
    """Write the loader's descriptor, as drivers for older chips do."""
    loader.write(CONTROL, 0x1000040)
    loader.write(DATA, address & 0xFFFFFFFF)
    loader.write(DATA, address >> 32)


def test_only_the_frts_command_of_fwsec_reserves_memory() -> None:
    """The descriptor has the address of the data."""
    for command, reserved in ((0x15, (0x100000, 0x120000)), (0x19, None)):
        loader = FwsecLoader()
        describe(loader, HIGH)

        assert loader.read_command(a_guest(at_1234567000=command)) == reserved


def test_fwsec_command_is_read_only_after_a_transfer_to_the_start_of_the_data() -> None:
    guest = a_guest(at_5000=0x19, at_120034567000=0x15)
    for command, to, is_data in ((0x600, 0, True), (0x610, 0, False), (0x600, 0x100, False)):
        loader = FwsecLoader()
        describe(loader, 0x5000)
        registers = {BASE: 0x34566000 >> 8, BASE_HIGH: 0x12, TO: to, FROM: 0x1000}
        for register, value in registers.items():
            loader.write(register, value)
        loader.write(TRANSFER, command)

        assert (loader.read_command(guest) is not None) is is_data
        # A transfer applies to one start only.
        assert loader.read_command(guest) is None


def test_writes_beyond_the_end_of_falcon_memory_wrap_around() -> None:
    loader = FwsecLoader()
    loader.write(CONTROL, 0xFFFC)
    for word in (7, *[0] * 16, 0x5000, 0):
        loader.write(DATA, word)

    assert loader.read_command(a_guest(at_5000=0x15)) is not None
