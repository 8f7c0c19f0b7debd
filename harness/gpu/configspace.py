"""A PCI function's configuration space: which bits answer, and which can be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.gpu import PciIdentity

SIZE = 256
BAR_COUNT = 6

COMMAND = 0x04
CACHE_LINE_SIZE = 0x0C
BAR_0 = 0x10
INTERRUPT_LINE = 0x3C

COMMAND_MEMORY = 1 << 1
_COMMAND_BUS_MASTER = 1 << 2
_COMMAND_PARITY = 1 << 6
_COMMAND_SERR = 1 << 8
_COMMAND_INTX_DISABLE = 1 << 10


class ConfigSpace:
    """The 256 bytes of a type 0 header (PCI Local Bus 3.0, chapter 6) with 32-bit memory BARs.

    No capabilities, no expansion ROM, no I/O BAR, and interrupt pin 0, so the guest routes no
    interrupt. Not thread-safe: its device is.
    """

    def __init__(self, identity: PciIdentity, bar_sizes: Mapping[int, int]) -> None:
        """`bar_sizes` has a power of two of bytes, 16 or more, for each BAR that exists."""
        for bar, size in bar_sizes.items():
            if not 0 <= bar < BAR_COUNT:
                raise ValueError(f"There is no BAR {bar}; a function has BARs 0 to 5.")
            if size < 16 or size & (size - 1) or size > 1 << 31:
                raise ValueError(f"BAR {bar} cannot have {size} bytes, but a power of two.")
        self._bar_sizes = dict(bar_sizes)
        self._initial = self._header(identity)
        self._writable = self._write_mask()
        self._bytes = bytearray(self._initial)

    @staticmethod
    def _header(identity: PciIdentity) -> bytes:
        header = bytearray(SIZE)
        for offset, length, value in (
            (0x00, 2, identity.vendor),
            (0x02, 2, identity.device),
            (0x08, 1, identity.revision),
            (0x09, 3, identity.class_code),
            (0x2C, 2, identity.subsystem_vendor),
            (0x2E, 2, identity.subsystem),
        ):
            header[offset : offset + length] = value.to_bytes(length, "little")
        return bytes(header)

    def _write_mask(self) -> bytes:
        mask = bytearray(SIZE)
        command = (
            COMMAND_MEMORY
            | _COMMAND_BUS_MASTER
            | _COMMAND_PARITY
            | _COMMAND_SERR
            | _COMMAND_INTX_DISABLE
        )
        mask[COMMAND : COMMAND + 2] = command.to_bytes(2, "little")
        mask[CACHE_LINE_SIZE] = 0xFF
        mask[INTERRUPT_LINE] = 0xFF
        for bar, size in self._bar_sizes.items():
            offset = BAR_0 + 4 * bar
            # The address bits below the size read as zero: that is how software sizes a BAR.
            mask[offset : offset + 4] = (0x1_0000_0000 - size).to_bytes(4, "little")
        return bytes(mask)

    def reset(self) -> None:
        """Return to the state after power-on: nothing decoded, no address given."""
        self._bytes[:] = self._initial

    def read(self, offset: int, size: int) -> int:
        """Return `size` bytes; those beyond the end read as all ones."""
        return int.from_bytes(self._bytes[offset : offset + size].ljust(size, b"\xff"), "little")

    def write(self, offset: int, value: int, size: int) -> None:
        """Write `size` bytes where bits are writable."""
        for index in range(offset, min(offset + size, SIZE)):
            mask = self._writable[index]
            if mask:
                written = value >> 8 * (index - offset)
                self._bytes[index] = self._bytes[index] & ~mask | written & mask

    def bar_address(self, bar: int) -> int | None:
        """Return where the guest put `bar`, or None while it does not decode."""
        if bar not in self._bar_sizes or not self._bytes[COMMAND] & COMMAND_MEMORY:
            return None
        # 0 is what an unassigned BAR holds.
        return self.read(BAR_0 + 4 * bar, 4) or None

    def find_bar(self, address: int, size: int) -> tuple[int, int] | None:
        """Return the BAR that answers the whole access, and the offset in it."""
        for bar, bar_size in self._bar_sizes.items():
            base = self.bar_address(bar)
            if base is not None and base <= address and address + size <= base + bar_size:
                return bar, address - base
        return None
