"""A GPU model as data; what a GPU adds to a machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from typing_extensions import override

from harness.errors import BadInputError

_DEVICE_ID = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")

#: Read-only registers of BAR0 by which NVIDIA's driver tells one chip from another.
PMC_BOOT_0 = 0x000
PMC_BOOT_42 = 0xA00

MIB = 1 << 20

DriverKind: TypeAlias = Literal["cuda", "grid"]


@dataclass(frozen=True, kw_only=True)
class PciIdentity:
    """What a PCI function says of itself in configuration space."""

    vendor: int
    device: int
    subsystem_vendor: int
    subsystem: int
    class_code: int
    revision: int

    @override
    def __str__(self) -> str:
        return f"{self.vendor:04x}:{self.device:04x}"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A memory BAR; a 64-bit one is prefetchable and takes the next one's place too."""

    mib: int
    bits: Literal[32, 64] = 32

    @property
    def size(self) -> int:
        """Return how many bytes it spans."""
        return self.mib * MIB


Bars: TypeAlias = Mapping[int, Bar]


@dataclass(frozen=True, kw_only=True)
class TransportBars:
    """A model's BARs by index, for each transport: they differ in what they allow."""

    mpqemu: Bars
    vfio_user: Bars


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """A kind of GPU: everything about it that a guest can see.

    `driver_kinds` are those that it takes, the one that a node gets by default first. `ids_from`
    says where the ids were taken from.
    """

    name: str
    title: str
    architecture: str
    pci: PciIdentity
    ids_from: str
    chip: int
    bars: TransportBars
    driver_kinds: tuple[DriverKind, ...]
    has_mig: bool
    extra_registers: Mapping[int, int] = field(default_factory=dict)

    @property
    def boot_registers(self) -> dict[int, int]:
        """Return the read-only registers of BAR0, by offset.

        PMC_BOOT_0 has the chip in bits 28:20 and the revision in 7:0. PMC_BOOT_42 has the
        chip's architecture in 29:24 and implementation in 23:20, the major revision in 19:16
        and the minor one in 15:12. With 0 there NVIDIA's driver 535 refuses the device.
        """
        revision = self.pci.revision
        return {
            PMC_BOOT_0: self.chip << 20 | revision,
            PMC_BOOT_42: self.chip << 20 | (revision >> 4) << 16 | (revision & 0xF) << 12,
            **self.extra_registers,
        }


@dataclass(frozen=True, kw_only=True)
class GpuNode:
    """A kind of node with GPUs: how many of which model, and what else goes with them."""

    name: str
    title: str
    model: GpuModel
    count: int
    vm_size: str
    needs_fabric_manager: bool

    @property
    def gpus(self) -> tuple[GpuModel, ...]:
        """Return the node's GPUs, slot by slot."""
        return (self.model,) * self.count


@dataclass(frozen=True, kw_only=True)
class GpuAttachment:
    """How to plug one GPU into a QEMU machine, as data.

    `fd` is the socket that QEMU inherits, or gets over QMP by `getfd`. It is void once QEMU has
    begun to talk to the device, so an attachment is plugged once. `root_port_window_mib` is the
    address space that the root port above must reserve (`mem-reserve`): without it a guest finds
    no room for the BARs of a hot-plugged function. Ten ports with 64 MiB fitted beside 1.5 GiB
    of RAM; with 160 MiB each the firmware hung.
    """

    id: str
    driver: str
    fd: int
    root_port_window_mib: int
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _DEVICE_ID.fullmatch(self.id):
            raise BadInputError(
                f"'{self.id}' cannot be a device's id in QEMU; begin with a letter, go on with "
                "letters, digits, '-', '.' and '_'.",
                source="GpuAttachment",
                key="id",
            )

    def to_device_argv(self, bus: str) -> str:
        """Return the value of `-device` that plugs the GPU at start, with `fd` inherited."""
        pairs = {"id": self.id, "fd": str(self.fd), "bus": bus, **self.properties}
        return ",".join((self.driver, *(f"{key}={_escaped(pairs[key])}" for key in pairs)))

    def to_device_add(self, bus: str, fdname: str) -> dict[str, object]:
        """Return the arguments of QMP's `device_add`; `fdname` is the name given to `getfd`."""
        return {
            "driver": self.driver,
            "id": self.id,
            "fd": fdname,
            "bus": bus,
            **self.properties,
        }


def root_port_window_mib(bars: Bars) -> int:
    """Return the window in MiB that a root port needs for these BARs: a power of two, 64 or more.

    BARs are aligned to their size, so the sum rounded up to a power of two has room for all.
    """
    return max(64, 1 << (sum(bar.mib for bar in bars.values()) - 1).bit_length())


def _escaped(value: str) -> str:
    """Return `value` as QEMU's option parser takes it: a comma is written twice."""
    return value.replace(",", ",,")
