"""The differences between chips: how they boot, their page tables, and their fixed registers.

`generated/g_kernel_gsp_nvoc.c` of the open kernel modules lists which implementation of each function a
chip uses. Offsets are in BAR 0.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.page_tables import Version

if TYPE_CHECKING:
    from collections.abc import Mapping


class Boot(enum.Enum):
    """How the driver starts the GSP."""

    BOOTER = "a booter on the security processor SEC2"
    FSP = "a message to the processor FSP"


#: The base addresses of the registers of the two falcons.
GSP_FALCON: Final = 0x110000
SEC2_FALCON: Final = 0x840000

#: Registers that select the core of a falcon; in each, one bit says that the selection is valid.
BCR_CONTROLS: Final = (0x111668, 0x841668)
BCR_VALID: Final = 1

#: Types of memory, `NV2080_CTRL_FB_INFO_RAM_TYPE_*`.
HBM2: Final = 0xF
HBM3: Final = 0x14
GDDR6: Final = 0x11

_ALL_LEVELS: Final = 0xFFFFFFFF
#: Registers with the same values on all chips. The values say that the GPU's firmware has booted, that
#: the falcons are halted with their memory scrubbed, and that each privilege level may write registers.
_COMMON: Final = {
    0x118128: 1,
    0x118234: 0xFF,
    0x1100F4: 1 << 10,
    0x110100: 0x10,
    0x840100: 0x10,
    0x110108: 0x100,
    0x840108: 0x100,
    0x9430: _ALL_LEVELS,
    0x1FA7C8: _ALL_LEVELS,
}


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One chip. The register `window`, masked by `window_mask`, moves the PRAMIN window."""

    name: str
    boot: Boot
    sm_version: int
    memory_type: int
    warps_per_sm: int = 64
    page_tables: Version = Version.V2
    has_vbios: bool = True
    #: Whether FWSEC reserves memory for the firmware runtime services (FRTS) before the boot.
    has_frts: bool = False
    #: Whether programs of falcons are signed and loaded by DMA.
    loads_by_dma: bool = False
    #: Whether the register of the memory size contains the size in MiB; otherwise the register
    #: contains a magnitude and a scale.
    has_memory_in_mib: bool = False
    can_scrub: bool = False
    has_mig: bool = False
    #: Whether the chip reports the distance from its temperature limit instead of the limit.
    has_temperature_margin: bool = False
    window: int = 0x1700
    window_mask: int = 0xFFFFFF
    config_mirror: int = 0x88000
    registers: Mapping[int, int] = field(default_factory=dict)

    def initial_registers(self, memory_mib: int) -> dict[int, int]:
        """Return the registers that a GPU with this memory size has after power-on."""
        memory = {0x1183A4: memory_mib} if self.has_memory_in_mib else _scaled(memory_mib)
        loading = _LOADING if self.loads_by_dma else {}
        return {**_COMMON, **memory, **loading, **self.registers}


def _scaled(memory_mib: int) -> dict[int, int]:
    scale = 0
    while memory_mib % 2 == 0 and (memory_mib >= 1 << 6 or scale < 10):
        memory_mib //= 2
        scale += 1
    return {0x100CE0: (memory_mib & 0x3F) << 4 | scale}


#: Fuses that switch off debugging and the display. With a display engine, the driver would create
#: objects, and would later wait forever for their removal.
_TURING: Final = {0x2174C: 1, 0x21C04: 1}
_NO_DISPLAY: Final = {0x820C04: 1}
#: Registers of the falcons: DMA is always complete, and a reset is always possible.
_IDLE: Final = 1 << 1
_LOADING: Final = {
    0x110118: _IDLE,
    0x840118: _IDLE,
    0x1100F4: 1 << 31 | 1 << 10,
    0x8400F4: 1 << 31 | 1 << 10,
    **dict.fromkeys(BCR_CONTROLS, 1),
}
#: The register in which the scrubber on SEC2 reports that it has finished.
_SCRUBBED: Final = {0x1180FC: 3 << 29, **_NO_DISPLAY}


def _ga10x(name: str) -> Chip:
    return Chip(
        name=name,
        boot=Boot.BOOTER,
        sm_version=0x806,
        memory_type=GDDR6,
        warps_per_sm=48,
        has_frts=True,
        loads_by_dma=True,
        has_memory_in_mib=True,
        registers=_NO_DISPLAY,
    )


def _ad10x(name: str) -> Chip:
    return replace(
        _ga10x(name), sm_version=0x809, has_temperature_margin=True, registers=_SCRUBBED
    )


#: Chips by NVIDIA's chip number.
CHIPS: Final[Mapping[int, Chip]] = {
    0x164: Chip(
        name="TU104",
        boot=Boot.BOOTER,
        sm_version=0x705,
        memory_type=GDDR6,
        warps_per_sm=32,
        has_frts=True,
        registers=_TURING,
    ),
    0x170: Chip(name="GA100", boot=Boot.BOOTER, sm_version=0x800, memory_type=HBM2, has_mig=True),
    0x172: _ga10x("GA102"),
    0x192: _ad10x("AD102"),
    0x194: _ad10x("AD104"),
    0x180: Chip(
        name="GH100",
        boot=Boot.FSP,
        sm_version=0x900,
        memory_type=HBM3,
        page_tables=Version.V3,
        has_vbios=False,
        has_memory_in_mib=True,
        can_scrub=True,
        has_mig=True,
        has_temperature_margin=True,
        window=0x10FD40,
        window_mask=0x3FFFFF,
        config_mirror=0x92000,
        registers={0x200BC: 0xFF, 0x8F0334: 0x44C},
    ),
}
