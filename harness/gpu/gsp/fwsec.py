"""Emulates the visible effect of FWSEC, a program in the video BIOS that reserves memory."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.vbios import COMMAND, COMMAND_BUFFER

if TYPE_CHECKING:
    from harness.gpu.gsp.guest_memory import GuestMemory

#: The DMA registers of a falcon. On GA102 and later, the driver loads programs into the falcon's
#: memory through these registers.
_DMA_BASE: Final = 0x110110
_DMA_BASE_HIGH: Final = 0x110128
_DMA_TO: Final = 0x110114
_DMA_FROM: Final = 0x11011C
_DMA_COMMAND: Final = 0x110118
_INTO_CODE: Final = 1 << 4

_DMEM_CONTROL: Final = 0x1101C0
_DMEM_DATA: Final = 0x1101C4
_DMEM_BYTES: Final = 0x10000
#: DMEM begins with the loader's descriptor; at this offset, the descriptor has the address of
#: FWSEC's data.
_DATA_ADDRESS: Final = 0x40
_FRTS: Final = 0x15
_FRTS_REGION: Final = COMMAND_BUFFER + 0x20


class FwsecLoader:
    """The data memory of the GSP's falcon, which the driver fills.

    The driver writes a loader's descriptor into this memory; from GA102 on, the driver transfers
    FWSEC's data by DMA.
    """

    def __init__(self) -> None:
        self._memory = bytearray(_DMEM_BYTES)
        self._at = 0
        self._dma = dict.fromkeys((_DMA_BASE, _DMA_BASE_HIGH, _DMA_TO, _DMA_FROM), 0)
        self._transferred: int | None = None

    def write(self, offset: int, value: int) -> None:
        """Record a write to a register."""
        if offset == _DMEM_CONTROL:
            self._at = value & 0xFFFC
        elif offset == _DMEM_DATA:
            self._memory[self._at : self._at + 4] = value.to_bytes(4, "little")
            self._at = self._at + 4 & 0xFFFC
        elif offset in self._dma:
            self._dma[offset] = value
        elif offset == _DMA_COMMAND and not value & _INTO_CODE and not self._dma[_DMA_TO]:
            base = self._dma[_DMA_BASE] | self._dma[_DMA_BASE_HIGH] << 32
            self._transferred = (base << 8) + self._dma[_DMA_FROM]

    def read_command(self, guest: GuestMemory) -> tuple[int, int] | None:
        """Return the range that the command makes FWSEC reserve, or None for any other command."""
        (address,) = struct.unpack_from("<Q", self._memory, _DATA_ADDRESS)
        if self._transferred is not None:
            address, self._transferred = self._transferred, None
        data = guest.read(address, 0x100)
        (command,) = struct.unpack_from("<I", data, COMMAND)
        if command != _FRTS:
            return None
        # Both fields are in units of 4 KiB.
        offset, size = struct.unpack_from("<II", data, _FRTS_REGION)
        return offset << 12, offset + size << 12
