"""GPU models as data, and how a GPU is attached to a QEMU machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from typing_extensions import override

from harness.errors import BadInputError
from harness.settings import GpuEmulation

if TYPE_CHECKING:
    from collections.abc import Iterable

_DEVICE_ID = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")

#: Read-only registers of BAR0 by which NVIDIA's driver identifies the chip.
PMC_BOOT_0 = 0x000
PMC_BOOT_42 = 0xA00

MIB = 1 << 20

#: NVIDIA's chip numbers: the lowest number of Ampere, all numbers of Ada, the lowest of Hopper.
_GA100 = 0x170
_ADA = range(0x190, 0x1A0)
_GH100 = 0x180


DriverKind: TypeAlias = Literal["cuda", "grid"]


@dataclass(frozen=True, kw_only=True)
class GpuKind:
    """The PCI vendor id and class that many GPUs share, each as four hexadecimal digits."""

    vendor: str
    class_code: str
    """Base class and subclass: "0302" is a 3D controller."""


@dataclass(frozen=True, kw_only=True)
class PciIdentity:
    """The ids of a PCI function in its configuration space."""

    vendor: int
    device: int
    subsystem_vendor: int
    subsystem: int
    class_code: int
    revision: int

    @override
    def __str__(self) -> str:
        return f"{self.vendor:04x}:{self.device:04x}"

    @property
    def kind(self) -> GpuKind:
        return GpuKind(vendor=f"{self.vendor:04x}", class_code=f"{self.class_code >> 8:04x}")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A memory BAR; a 64-bit BAR is prefetchable, and occupies its own and the next index."""

    mib: int
    bits: Literal[32, 64] = 32

    @property
    def size(self) -> int:
        """Return the BAR's size in bytes."""
        return self.mib * MIB


Bars: TypeAlias = Mapping[int, Bar]


@dataclass(frozen=True, kw_only=True)
class TransportBars:
    """A model's BARs by index, for each transport, since not every transport supports all BARs."""

    mpqemu: Bars
    vfio_user: Bars


@dataclass(frozen=True, kw_only=True)
class GspFacts:
    """The facts about a model that the system processor (GSP) reports to NVIDIA's driver.

    Each TPC has two SMs. `vbios` is the version of the video BIOS as nvidia-smi shows it.
    """

    facts_from: str
    memory_mib: int
    memory_bus_bits: int
    l2_cache_mib: int
    gpcs: int
    tpcs: int
    vbios: str
    copy_engines: int = 5
    part_number: str = ""
    sku: str = ""
    inforom: str = ""
    inforom_oem: tuple[int, int] = (2, 1)
    inforom_ecc: tuple[int, int] = (7, 16)
    memory_banks: int = 0
    power_limit_w: int | None = None
    least_power_limit_w: int | None = None
    shutdown_c: int | None = None
    slowdown_c: int | None = None
    operating_c: int | None = None


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """A GPU model, with all properties that a guest can see.

    `driver_kinds` lists the kinds of NVIDIA driver that support the model, the default kind first.
    `ids_from` says where the ids were found. `gsp` is None if the model's file has no facts about
    its system processor (GSP); only `GpuEmulation.GSP` emulates that processor.
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
    gsp: GspFacts | None = None
    emulation: GpuEmulation = GpuEmulation.IDENTITY

    @override
    def __repr__(self) -> str:
        """Return a short text, since pytest prints the arguments of each test that fails."""
        return f"GpuModel({self.name!r})"

    def emulated_as(self, emulation: GpuEmulation) -> GpuModel:
        """Return this model with the given kind of emulation."""
        return replace(self, emulation=emulation)

    @property
    def is_hopper_or_later(self) -> bool:
        return self.chip >= _GH100 and self.chip not in _ADA

    @property
    def pcie_generation(self) -> int:
        """Return the generation of PCI Express that the GPU's chip supports."""
        if self.is_hopper_or_later:
            return 5
        return 4 if self.chip >= _GA100 else 3

    @property
    def boot_registers(self) -> dict[int, int]:
        """Return the read-only registers of BAR0, by offset.

        PMC_BOOT_0 contains the chip in bits 28:20 and the revision in bits 7:0. PMC_BOOT_42
        contains the chip's architecture in bits 29:24, the implementation in 23:20, the major
        revision in 19:16 and the minor revision in 15:12. NVIDIA's driver 535 refuses a device
        whose PMC_BOOT_42 is 0.
        """
        revision = self.pci.revision
        return {
            PMC_BOOT_0: self.chip << 20 | revision,
            PMC_BOOT_42: self.chip << 20 | (revision >> 4) << 16 | (revision & 0xF) << 12,
            **self.extra_registers,
        }


@dataclass(frozen=True, kw_only=True)
class GpuNode:
    """A kind of GPU node: its GPUs' model, how many GPUs it has, and its name in the cloud."""

    name: str
    title: str
    model: GpuModel
    count: int
    vm_size: str
    needs_fabric_manager: bool

    @property
    def gpus(self) -> tuple[GpuModel, ...]:
        """Return the models of the node's GPUs, in the order of the slots."""
        return (self.model,) * self.count


@dataclass(frozen=True, kw_only=True)
class GpuAttachment:
    """Data that says how to plug one GPU into a QEMU machine; the data is valid for one use.

    `fd` is a socket that QEMU inherits, or gets over QMP by `getfd`. `fd` is None if QEMU itself
    opens a socket in the machine's folder; the socket's path is then in the properties.

    The root port must reserve two windows of addresses. Otherwise a guest has no space for the BARs
    of a hot-plugged function. `root_port_window_mib` is the size of the window below 4 GiB
    (`mem-reserve`), and `aperture_mib` is the size of the window above 4 GiB (`pref64-reserve`). In
    a guest with 1.5 GiB of RAM, ten ports with windows of 64 MiB worked. With windows of
    160 MiB, ten ports made the firmware hang.
    """

    id: str
    driver: str
    fd: int | None = None
    root_port_window_mib: int
    aperture_mib: int = 0
    properties: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _DEVICE_ID.fullmatch(self.id):
            raise BadInputError(
                f"'{self.id}' is not a device id of QEMU; an id is a letter, followed by letters, "
                "digits, '-', '.' and '_'.",
                source="GpuAttachment",
                key="id",
            )

    def to_device_argv(self, bus: str) -> list[str]:
        """Return the values of QEMU's option `-device` that plug in the GPU when QEMU starts.

        QEMU inherits `fd`. An attachment without `fd` is rendered as JSON, which `-device` accepts
        since QEMU 6.2.
        """
        if self.fd is None:
            return [json.dumps(each) for each in self.to_device_add(bus, None)]
        pairs = {"id": self.id, "fd": str(self.fd), "bus": bus, **self.properties}
        return [",".join((self.driver, *(f"{key}={_escaped(pairs[key])}" for key in pairs)))]

    def to_device_add(self, bus: str, fdname: str | None) -> list[dict[str, object]]:
        """Return the arguments of each QMP command `device_add`.

        `fdname` is the name of `fd` in the QMP command `getfd`.
        """
        handed = {} if fdname is None else {"fd": fdname}
        return [{"driver": self.driver, "id": self.id, **handed, "bus": bus, **self.properties}]


@dataclass(frozen=True, kw_only=True)
class HostGpuAttachment:
    """Data that says how to plug a GPU of the host into a machine by VFIO.

    `addresses` lists the functions in the GPU's IOMMU group, such as `0000:65:00.0`, the GPU's own
    function first. All functions must be bound to `vfio-pci`. In the guest, the functions are in
    one slot and have the same function numbers. `root_port_window_mib` and `aperture_mib` mean the
    same as in `GpuAttachment`.
    """

    id: str
    addresses: tuple[str, ...]
    root_port_window_mib: int = 64
    aperture_mib: int = 0
    driver: ClassVar[str] = "vfio-pci"
    fd: ClassVar[None] = None

    def to_device_argv(self, bus: str) -> list[str]:
        """Return the values of QEMU's option `-device` that plug in all functions when QEMU starts."""
        return [json.dumps(each) for each in self.to_device_add(bus, None)]

    def to_device_add(self, bus: str, _fdname: str | None) -> list[dict[str, object]]:
        """Return the arguments of the QMP commands `device_add`; VFIO needs no file descriptor.

        Function 0 is last, since a guest examines a PCIe slot when function 0 is plugged in. The
        ROM BAR is off, so that the guest's firmware does not run the GPU's BIOS.
        """
        devices: list[dict[str, object]] = []
        for address in sorted(self.addresses, key=_function_number, reverse=True):
            device: dict[str, object] = {
                "driver": self.driver,
                "id": self.id_of(address),
                "host": address,
                "bus": bus,
                "addr": f"0x0.{_function_number(address):x}",
                "rombar": 0,
            }
            if len(self.addresses) > 1:
                device["multifunction"] = True
            devices.append(device)
        return devices

    def id_of(self, address: str) -> str:
        """Return a function's id in QEMU: `id` for the GPU, `id` and a suffix for other functions."""
        if address == self.addresses[0]:
            return self.id
        return f"{self.id}-{_function_number(address):x}"


#: A device that can be plugged into a root port of a machine.
Attachment: TypeAlias = "GpuAttachment | HostGpuAttachment"


def _function_number(address: str) -> int:
    return int(address.rpartition(".")[2], 16)


def root_port_window_mib(bars: Bars) -> int:
    """Return the size in MiB of the window below 4 GiB that a root port needs: at least 64.

    Each BAR is aligned to its own size. So all BARs fit into a window if its size is the sum of
    the BARs' sizes, rounded up to a power of two.
    """
    return max(64, _window_mib(bar for bar in bars.values() if bar.bits == 32))


def aperture_mib(bars: Bars) -> int:
    """Return the size in MiB of a root port's window for 64-bit BARs; 0 if there is no such BAR."""
    return _window_mib(bar for bar in bars.values() if bar.bits == 64)


def shrink_to_window(bars: Bars, window_mib: int) -> Bars:
    """Halve the largest 32-bit BARs until all fit into a window at any address; return all BARs.

    Firmware aligns the window of an empty slot only to 1 MiB, and Linux does not move the window. A
    BAR larger than half of the window may not fit, since the BAR must be aligned to its own size.
    """
    fitting = dict(bars)
    while True:
        narrow = {index: bar for index, bar in fitting.items() if bar.bits == 32}
        if not narrow or 2 * _window_mib(narrow.values()) <= window_mib:
            return fitting
        index = max(narrow, key=lambda index: narrow[index].mib)
        if narrow[index].mib == 1:
            raise BadInputError(
                f"32-bit BARs of {[bar.mib for bar in narrow.values()]} MiB do not fit into the window of "
                f"a root port, which has {window_mib} MiB; raise 'root_port_window_mib'.",
                source="MachineSpec",
                key="root_port_window_mib",
            )
        fitting[index] = replace(narrow[index], mib=narrow[index].mib // 2)


def shrink_to_aperture(bars: Bars, aperture_mib: int) -> Bars:
    """Halve the largest 64-bit BARs until all fit into a window; return all BARs.

    The BARs of a real GPU may have hundreds of GiB, and a CPU that QEMU emulates can't address the
    BARs of eight such GPUs.
    """
    fitting = dict(bars)
    while _window_mib(bar for bar in fitting.values() if bar.bits == 64) > aperture_mib:
        wide = {index: bar for index, bar in fitting.items() if bar.bits == 64}
        index = max(wide, key=lambda index: wide[index].mib)
        if wide[index].mib == 1:
            raise BadInputError(
                f"64-bit BARs of {[bar.mib for bar in wide.values()]} MiB do not fit into the window of "
                f"a root port, which has {aperture_mib} MiB; raise 'root_port_aperture_mib'.",
                source="MachineSpec",
                key="root_port_aperture_mib",
            )
        fitting[index] = replace(wide[index], mib=wide[index].mib // 2)
    return fitting


def _window_mib(bars: Iterable[Bar]) -> int:
    total = sum(bar.mib for bar in bars)
    return total and 1 << (total - 1).bit_length()


def _escaped(value: object) -> str:
    """Return `value` with each comma doubled, as QEMU's option parser requires."""
    return str(value).replace(",", ",,")
