"""A GPU's engines and interrupt vectors, in the form of the tables that the driver requests.

The numbers of engine types and of interrupt sources differ between driver releases, so the numbers
come from the layouts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.gpu.gsp.layouts import Layouts

# Class numbers in engine descriptors.
_GRAPHICS: Final = 0xD334DF
_COPY: Final = 0x793CEB
_SOFTWARE: Final = 0x95A6F5

_DEVICE_TYPE_GRAPHICS: Final = 0
_DEVICE_TYPE_COPY: Final = 0x13
_NOT_THERE: Final = 0xFFFFFFFF

#: Interrupt vectors. The engines' interrupts are in leaf 6 (stalling) and leaf 0 (not stalling).
_FIRST_STALL: Final = 192
_SERVICES: Final = {
    "FIFO": 152,
    "GSP": 153,
    "TMR": 154,
    "BUS": 155,
    "FB": 156,
    "FBHUB": 157,
    "LTC": 158,
    "NVLINK": 159,
    "PRIVRING": 160,
    # The next two vectors are in leaf 2, which belongs to the driver for unified memory.
    "REPLAYABLE_FAULT": 64,
    "ACCESS_CNTR": 65,
    "NON_REPLAYABLE_FAULT": 128,
    "CPU_DOORBELL": 129,
    "REPLAYABLE_FAULT_ERROR": 130,
    "INFO_FAULT": 131,
    "PRIV_DOORBELL": 133,
    "NON_REPLAYABLE_FAULT_ERROR": 134,
}
#: The first and last subtree of each kind of interrupt.
_SUBTREES: Final = ((2, 2), (3, 3), (0, 0), (3, 3), (0, 0), (1, 1), (2, 2))


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine, and the runlist of its channels; the software "engine" has no runlist."""

    name: str
    descriptor: int
    rm_type: int
    mc_index: int
    fault_id: int
    device_type: int
    instance: int
    runlist: int
    pbdma: int | None

    def pack(self, position: int) -> tuple[bytes, bytes]:
        """Return entry `position` of the table: the engine's data, and the ids of its PBDMA."""
        is_host_driven = self.pbdma is not None
        data = struct.pack(
            "<16I",
            self.descriptor,
            position,
            self.rm_type,
            self.runlist if is_host_driven else 0,
            self.fault_id,
            0,
            _NOT_THERE,
            _NOT_THERE,
            self.mc_index,
            self.device_type,
            self.instance,
            0x500000 + 0x1000 * self.runlist if is_host_driven else 0,
            int(is_host_driven),
            0,
            0x510000 + 0x10000 * self.runlist if is_host_driven else 0,
            0,
        )
        pbdma = (
            b"" if self.pbdma is None else struct.pack("<5I", self.pbdma, 0, 32 + self.pbdma, 0, 1)
        )
        return data, pbdma


def engines(layouts: Layouts, *, copy_engines: int, graphics: int) -> list[Engine]:
    """Return a GPU's engines, the software engine last; MIG needs several graphics engines."""
    rm, mc = _numbers(layouts)
    found = [
        Engine(
            name="GRAPHICS" if not index else f"GRAPHICS{index}",
            descriptor=_GRAPHICS << 8 | index,
            rm_type=rm("GR0") + index,
            mc_index=mc("GR") + index,
            fault_id=64 + 8 * index,
            device_type=_DEVICE_TYPE_GRAPHICS,
            instance=index,
            runlist=0 if not index else copy_engines + index,
            pbdma=0 if not index else copy_engines + 2 + index,
        )
        for index in range(graphics)
    ]
    copies = [
        Engine(
            name=f"CE{index}",
            descriptor=_COPY << 8 | index,
            rm_type=rm("COPY0") + index,
            mc_index=mc("CE0") + index,
            fault_id=15 + index,
            device_type=_DEVICE_TYPE_COPY,
            instance=index,
            runlist=index + 1,
            pbdma=index + 2,
        )
        for index in range(copy_engines)
    ]
    software = Engine(
        name="SW",
        descriptor=_SOFTWARE << 8,
        rm_type=rm("SW"),
        mc_index=0,
        fault_id=0x3F,
        device_type=0,
        instance=0,
        runlist=0x3E,
        pbdma=None,
    )
    return [*found[:1], *copies, *found[1:], software]


def engine_mask(found: list[Engine]) -> int:
    """Return a bit mask of the engines' types."""
    mask = 0
    for engine in found:
        mask |= 1 << engine.rm_type if engine.pbdma is not None else 0
    return mask


def interrupt_table(layouts: Layouts, found: list[Engine]) -> Iterator[tuple[int, int, int]]:
    """Yield the index of each interrupt source, with its stalling and its non-stalling vector."""
    _, mc = _numbers(layouts)
    for position, engine in enumerate(each for each in found if each.pbdma is not None):
        yield engine.mc_index, _FIRST_STALL + position, position
    for name, vector in _SERVICES.items():
        yield mc(name), vector, _NOT_THERE


def pack_subtrees() -> bytes:
    """Return the ranges of subtrees in the driver's format."""
    return b"".join(struct.pack("<BB", *each) for each in _SUBTREES)


#: The vector by which the GSP announces a message.
GSP_VECTOR: Final = _SERVICES["GSP"]


def _numbers(layouts: Layouts) -> tuple[Callable[[str], int], Callable[[str], int]]:
    """Return two functions that find the number of an engine type or interrupt source by name."""

    def rm(name: str) -> int:
        return layouts.constant(f"RM_ENGINE_TYPE_{name}")

    def mc(name: str) -> int:
        return layouts.constant(f"MC_ENGINE_IDX_{name}")

    return rm, mc
