"""A PCI function's configuration space, and its writable bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.gpu import Bars, PciIdentity

CONVENTIONAL_SIZE = 256
EXPRESS_SIZE = 4096
BAR_COUNT = 6

COMMAND = 0x04
_STATUS = 0x06
CACHE_LINE_SIZE = 0x0C
BAR_0 = 0x10
_CAPABILITIES = 0x34
INTERRUPT_LINE = 0x3C
INTERRUPT_PIN = 0x3D

#: The offset of the PCI Express capability; the registers' offsets count from this offset.
EXPRESS = 0x60


@dataclass(frozen=True, kw_only=True)
class Places:
    """The offsets of the capabilities of a function with message signalled interrupts (MSI)."""

    power: int
    msi: int
    express: int


#: The offsets at which NVIDIA's driver expects the capabilities, to read the link's width and speed
#: (`dev_nv_xve.h` and `dev_xtl_ep_pcfg_gpu.h` of the open kernel modules).
BEFORE_HOPPER = Places(power=0x60, msi=0x68, express=0x78)
FROM_HOPPER = Places(power=0x40, msi=0x48, express=EXPRESS)

_POWER_ID = 0x01
_MSI_ID = 0x05
_MSI_64BIT = 1 << 7
_EXPRESS_ID = 0x10
_DEVICE_CONTROL = 0x08
_LINK_CONTROL = 0x10
_DEVICE_CONTROL_2 = 0x28
_STATUS_HAS_CAPABILITIES = 1 << 4

COMMAND_MEMORY = 1 << 1
_COMMAND_BUS_MASTER = 1 << 2
_COMMAND_PARITY = 1 << 6
_COMMAND_SERR = 1 << 8
_COMMAND_INTX_DISABLE = 1 << 10

#: Software writes this value to both 32-bit halves of a BAR to learn the BAR's size. This value in
#: one half does not prove that software is learning the size, because the half may also be a part
#: of an address above 4 GiB.
_SIZING = 0xFFFFFFFF
_BAR_64BIT = 0x4
_BAR_PREFETCHABLE = 0x8


class ConfigSpace:
    """The bytes of a type 0 header (PCI Local Bus 3.0, chapter 6) with memory BARs.

    An express function has 4096 bytes and the PCI Express capability; any other function has 256
    bytes and no capability. There is no expansion ROM and no I/O BAR. The interrupt pin is A, since
    NVIDIA's driver does not probe a function without a routed interrupt. With `has_msi` an express
    function also has MSI. `generation` is the link's generation of PCI Express. The object is not
    thread-safe; its device serialises the calls.
    """

    def __init__(
        self,
        identity: PciIdentity,
        bars: Bars,
        *,
        is_express: bool = False,
        has_msi: bool = False,
        places: Places = BEFORE_HOPPER,
        generation: int = 4,
    ) -> None:
        """Check `bars`: each size is a power of two, at least 16; a 64-bit BAR has two indices."""
        used: set[int] = set()
        for index, bar in bars.items():
            indices = {index} if bar.bits == 32 else {index, index + 1}
            if not indices <= set(range(BAR_COUNT)) - used:
                raise ValueError(
                    f"A {bar.bits}-bit BAR {index} is not possible; a PCI function has BARs 0 to 5, "
                    "each number is used once, and a 64-bit BAR occupies two numbers."
                )
            used |= indices
            most = 1 << (31 if bar.bits == 32 else 62)
            if bar.size < 16 or bar.size & (bar.size - 1) or bar.size > most:
                raise ValueError(
                    f"BAR {index} cannot have {bar.size} bytes; the size of a {bar.bits}-bit BAR is a "
                    f"power of two from 16 to {most}."
                )
        self._bars = dict(bars)
        self._has_msi = is_express and has_msi
        self._places = places
        self._generation = generation
        self._express = places.express if self._has_msi else EXPRESS
        self._initial = self._header(identity, is_express)
        self._writable = self._write_mask(is_express)
        self._bytes = bytearray(self._initial)
        self._sized: set[int] = set()

    @property
    def size(self) -> int:
        return len(self._initial)

    def _header(self, identity: PciIdentity, is_express: bool) -> bytes:
        header = bytearray(EXPRESS_SIZE if is_express else CONVENTIONAL_SIZE)
        fields = [
            (0x00, 2, identity.vendor),
            (0x02, 2, identity.device),
            (0x08, 1, identity.revision),
            (0x09, 3, identity.class_code),
            (0x2C, 2, identity.subsystem_vendor),
            (0x2E, 2, identity.subsystem),
        ]
        fields += [
            (BAR_0 + 4 * index, 4, _BAR_64BIT | _BAR_PREFETCHABLE)
            for index, bar in self._bars.items()
            if bar.bits == 64
        ]
        fields.append((INTERRUPT_PIN, 1, 1))
        if is_express:
            fields += [
                (_STATUS, 2, _STATUS_HAS_CAPABILITIES),
                (_CAPABILITIES, 1, self._places.power if self._has_msi else self._express),
                (self._express, 1, _EXPRESS_ID),
                # Version 2 of the capability; an endpoint (PCI Express Base 4.0, 7.5.3.2).
                (self._express + 0x02, 2, 0x0002),
                # Role-based error reporting, which PCI Express requires since version 1.1.
                (self._express + 0x04, 4, 1 << 15),
                # 16 lanes at the speed of the generation: first the maximum, then the negotiated values.
                (self._express + 0x0C, 4, 16 << 4 | self._generation),
                (self._express + 0x12, 2, 16 << 4 | self._generation),
                (self._express + 0x2C, 4, ((1 << self._generation) - 1) << 1),
            ]
        if self._has_msi:
            power, msi = self._places.power, self._places.msi
            fields += [
                (power, 2, _POWER_ID | msi << 8),
                # Version 3 of the power management capability.
                (power + 0x02, 2, 0x0003),
                (msi, 2, _MSI_ID | self._express << 8),
                (msi + 0x02, 2, _MSI_64BIT),
            ]
        for offset, length, value in fields:
            header[offset : offset + length] = value.to_bytes(length, "little")
        return bytes(header)

    def _write_mask(self, is_express: bool) -> bytes:
        mask = bytearray(EXPRESS_SIZE if is_express else CONVENTIONAL_SIZE)
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
        for index, bar in self._bars.items():
            offset, length = BAR_0 + 4 * index, bar.bits // 8
            # The address bits below a BAR's size read as zero, so that software learns the size.
            mask[offset : offset + length] = ((1 << bar.bits) - bar.size).to_bytes(
                length, "little"
            )
        if is_express:
            # The last bit of Device Control would request a reset, which this device can't do.
            for register, bits in (
                (_DEVICE_CONTROL, 0x7FFF),
                (_LINK_CONTROL, 0x01FB),
                (_DEVICE_CONTROL_2, 0x001F),
            ):
                offset = self._express + register
                mask[offset : offset + 2] = bits.to_bytes(2, "little")
        if self._has_msi:
            power, msi = self._places.power, self._places.msi
            mask[power + 4 : power + 6] = (0x0003).to_bytes(2, "little")
            # The enable bit; the address, whose last two bits are zero; the data.
            mask[msi + 2 : msi + 4] = (0x0001).to_bytes(2, "little")
            mask[msi + 4 : msi + 12] = ((1 << 64) - 4).to_bytes(8, "little")
            mask[msi + 12 : msi + 14] = b"\xff\xff"
        return bytes(mask)

    def reset(self) -> None:
        """Return to the state after power-on: the BARs have no addresses, and decoding is off."""
        self._bytes[:] = self._initial
        self._sized.clear()

    def read(self, offset: int, size: int) -> int:
        """Read `size` bytes; bytes beyond the end read as all ones."""
        return int.from_bytes(self._bytes[offset : offset + size].ljust(size, b"\xff"), "little")

    def write(self, offset: int, value: int, size: int) -> None:
        """Write `size` bytes; only writable bits change."""
        if (offset, size, value) == (offset & ~3, 4, _SIZING):
            self._sized.add(offset)
        else:
            self._sized.discard(offset & ~3)
        for index in range(offset, min(offset + size, self.size)):
            mask = self._writable[index]
            if mask:
                written = value >> 8 * (index - offset)
                self._bytes[index] = self._bytes[index] & ~mask | written & mask

    def bar_address(self, bar: int) -> int | None:
        """Return the address that the guest gave to `bar`, or None while memory decoding is off."""
        if bar not in self._bars or not self._bytes[COMMAND] & COMMAND_MEMORY:
            return None
        # A BAR that has no address contains 0.
        return self.read(BAR_0 + 4 * bar, self._bars[bar].bits // 8) & ~0xF or None

    @property
    def is_placed(self) -> bool:
        """Return whether every BAR contains an address, even if memory decoding is still off."""
        return all(self._is_placed(index, bar.bits // 8) for index, bar in self._bars.items())

    def _is_placed(self, bar: int, length: int) -> bool:
        offset = BAR_0 + 4 * bar
        halves = range(offset, offset + length, 4)
        return bool(self.read(offset, length) & ~0xF) and self._sized.isdisjoint(halves)

    def find_bar(self, address: int, size: int) -> tuple[int, int] | None:
        """Return the BAR that contains the whole access, and the offset in that BAR, or None."""
        for index, bar in self._bars.items():
            start = self.bar_address(index)
            if start is not None and start <= address and address + size <= start + bar.size:
                return index, address - start
        return None
