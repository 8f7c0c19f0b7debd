"""GPUs of this host as data: functions, IOMMU groups, and whether a test may lease a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from harness.gpu import GpuModel
    from harness.gpu.passthrough.bars import MemoryBar

VFIO_DRIVER = "vfio-pci"

#: A PCI address with its segment, as in sysfs. The pattern is strict, since addresses become parts
#: of paths.
ADDRESS_PATTERN = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
#: A kernel driver's name, which is also the name of a folder in sysfs.
DRIVER_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}"

_SHORT_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])")
_ADDRESS = re.compile(ADDRESS_PATTERN)
_DRIVER = re.compile(DRIVER_PATTERN)
_DISPLAY = 0x03
_ACCELERATOR = 0x12
_BRIDGES = frozenset({0x0600, 0x0604})


def parse_address(text: str, *, source: str, key: str | None = None) -> str:
    """Parse a PCI address; return it with its segment, as in '0000:65:00.0'; raises BadInputError."""
    match = _SHORT_ADDRESS.fullmatch(text.strip().lower())
    if match is None:
        raise BadInputError(
            f"'{text}' is not a PCI address; write it as `lspci -D` does, such as '0000:65:00.0'.",
            source=source,
            key=key,
        )
    # nvidia-smi writes the segment with eight digits, sysfs with at least four.
    return f"{int(match[1] or '0', 16):04x}:{match[2]}"


def is_address(text: str) -> bool:
    """Return whether `text` is a PCI address with its segment, as sysfs writes it."""
    return _ADDRESS.fullmatch(text) is not None


def is_driver_name(text: str) -> bool:
    """Return whether the pool accepts `text` as the name of a kernel driver."""
    return _DRIVER.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class BoundDriver:
    """The driver and the `driver_override` of a PCI function; None stands for a missing value."""

    driver: str | None
    override: str | None


@dataclass(frozen=True, kw_only=True)
class HostFunction:
    """A PCI function of this host, as sysfs describes it.

    `unreadable` lists the attributes that exist but could not be read, so their values are unknown.
    `reset_methods` lists the methods in the order in which the kernel tries them. A kernel before
    5.15 does not list the methods; `reset_methods` then contains only 'default'. `is_answering` is
    false if configuration space shows no ids, or if the function stays in D3cold.
    """

    address: str
    vendor: int
    device: int
    subsystem_vendor: int = 0
    subsystem: int = 0
    class_code: int
    driver: str | None = None
    driver_override: str | None = None
    group: int | None = None
    reset_methods: tuple[str, ...] = ()
    is_boot_vga: bool = False
    rom_bytes: int | None = None
    numa_node: int | None = None
    power_state: str | None = None
    is_answering: bool = True
    bars: Mapping[int, MemoryBar] = field(default_factory=dict)
    physical_function: str | None = None
    """The physical function, if this function is an SR-IOV virtual function."""
    virtual_functions: tuple[str, ...] = ()
    mdev_types: tuple[str, ...] = ()
    """The types of mediated devices (vGPUs) that the function's driver offers."""
    mdevs: tuple[str, ...] = ()
    """The mediated devices that exist, by UUID."""
    unreadable: tuple[str, ...] = ()

    @property
    def slot(self) -> str:
        """Return the address without the function's number."""
        return self.address.rpartition(".")[0]

    @property
    def ids(self) -> str:
        return f"{self.vendor:04x}:{self.device:04x}"

    @property
    def is_gpu(self) -> bool:
        """Return whether the function is a display controller or a processing accelerator."""
        return self.class_code >> 16 in {_DISPLAY, _ACCELERATOR}

    @property
    def is_bridge(self) -> bool:
        """Return whether the function is a host or PCI bridge; VFIO ignores bridges of a group."""
        return self.class_code >> 8 in _BRIDGES

    @override
    def __str__(self) -> str:
        driver = f", driver {self.driver}" if self.driver else ""
        return f"{self.address} ({self.ids}, class {self.class_code:06x}{driver})"


@dataclass(frozen=True, kw_only=True)
class IommuGroup:
    """Functions that the IOMMU can't isolate from each other; one machine gets all endpoints."""

    number: int
    functions: tuple[HostFunction, ...]

    @property
    def endpoints(self) -> tuple[HostFunction, ...]:
        """Return the functions that are not bridges."""
        return tuple(each for each in self.functions if not each.is_bridge)


class VerdictKind(IntEnum):
    """The possible verdicts on a GPU; if several apply, the verdict with the largest value is used."""

    USABLE = 0
    BUSY = 1
    """The GPU is in use now, and may be leased later."""
    UNKNOWN = 2
    """A fact that decides the verdict could not be read."""
    REFUSED = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a GPU may be leased; `reasons` are sentences, the most important first."""

    kind: VerdictKind
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, findings: Iterable[tuple[VerdictKind, str]], usable: str) -> Verdict:
        """Return the verdict for the findings; without findings, USABLE with reason `usable`."""
        ranked = sorted(findings, key=lambda finding: -finding[0])
        if not ranked:
            return cls(kind=VerdictKind.USABLE, reasons=(usable,))
        return cls(kind=ranked[0][0], reasons=tuple(reason for _, reason in ranked))

    @property
    def is_usable(self) -> bool:
        return self.kind is VerdictKind.USABLE

    @property
    def reason(self) -> str:
        return " ".join(self.reasons)

    def with_finding(self, kind: VerdictKind, reason: str) -> Verdict:
        """Return this verdict with one more finding."""
        if self.is_usable:
            return Verdict(kind=kind, reasons=(reason,))
        if kind > self.kind:
            return Verdict(kind=kind, reasons=(reason, *self.reasons))
        return Verdict(kind=self.kind, reasons=(*self.reasons, reason))


@dataclass(frozen=True, kw_only=True)
class HostGpu:
    """A GPU of this host; `group` is None if the host's IOMMU is absent or off.

    `model` is the name of the GPU's model if the inventory states it.
    """

    function: HostFunction
    group: IommuGroup | None
    verdict: Verdict
    model: str | None = None

    @property
    def address(self) -> str:
        return self.function.address

    @property
    def functions(self) -> tuple[HostFunction, ...]:
        """Return the functions that a machine gets: the GPU, then the group's other endpoints."""
        others = () if self.group is None else self.group.endpoints
        return (self.function, *(each for each in others if each.address != self.address))

    def is_model(self, model: GpuModel) -> bool:
        """Return whether the GPU's model is `model`.

        The PCI ids decide, unless the inventory states the GPU's model.
        """
        if self.model is not None:
            return self.model == model.name
        pci = model.pci
        return (self.function.vendor, self.function.device) == (pci.vendor, pci.device)


@dataclass(frozen=True, kw_only=True)
class HostDevices:
    """All PCI functions of this host by address, and its GPUs."""

    functions: Mapping[str, HostFunction]
    gpus: tuple[HostGpu, ...]


@dataclass(frozen=True, kw_only=True)
class GpuChoice:
    """A test's request for a GPU of the host; without `model` and `address`, any GPU fits."""

    model: GpuModel | None = None
    address: str | None = None

    @override
    def __str__(self) -> str:
        if self.address is not None:
            return f"GPU {self.address}"
        return "any GPU" if self.model is None else f"a GPU of model '{self.model.name}'"
