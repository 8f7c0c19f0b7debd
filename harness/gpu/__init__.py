"""The model catalogue; what a GPU adds to a machine."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import AfterValidator, Field
from typing_extensions import override

from harness.datafile import listed, read_data_file
from harness.errors import BadInputError

_MIB = 1 << 20
_MODEL_NAME = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")
_DEVICE_ID = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_FORBID: pydantic.ConfigDict = pydantic.ConfigDict(extra="forbid")

#: Read-only registers of BAR0 by which NVIDIA's driver tells one chip from another.
PMC_BOOT_0 = 0x000
PMC_BOOT_42 = 0xA00


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("A BAR's size is a power of two, since its address bits are hard-wired")
    return value


Uint8 = Annotated[int, Field(ge=0, le=0xFF)]
Uint16 = Annotated[int, Field(ge=0, le=0xFFFF)]
Uint24 = Annotated[int, Field(ge=0, le=0xFFFFFF)]
Uint32 = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
BarIndex = Annotated[int, Field(ge=0, le=5)]
#: QEMU 7.2 aborts on a 2 GiB BAR behind `x-pci-proxy-dev`; 256 MiB was seen to work.
MpqemuBarMib = Annotated[int, Field(ge=1, le=256), AfterValidator(_power_of_two)]
RegisterOffset = Annotated[int, Field(ge=0, le=0xFFFFFC, multiple_of=4)]


@dataclass(frozen=True, kw_only=True)
class PciIdentity:
    """What a PCI function says of itself in configuration space."""

    __pydantic_config__ = _FORBID

    vendor: Uint16
    device: Uint16
    subsystem_vendor: Uint16
    subsystem: Uint16
    class_code: Uint24
    revision: Uint8

    @override
    def __str__(self) -> str:
        return f"{self.vendor:04x}:{self.device:04x}"


@dataclass(frozen=True, kw_only=True)
class TransportBars:
    """Sizes of memory BARs in MiB by index, for each transport: they differ in what they allow."""

    __pydantic_config__ = _FORBID

    mpqemu: Annotated[Mapping[BarIndex, MpqemuBarMib], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A GPU model as a person writes it; `GpuModel` adds its name.

    `chip` is NVIDIA's number of the chip, 0x180 for GH100. `registers` adds read-only registers
    of BAR0, by offset.
    """

    __pydantic_config__ = _FORBID

    title: Annotated[str, Field(min_length=1)]
    architecture: Annotated[str, Field(min_length=1)]
    pci: PciIdentity
    chip: Annotated[int, Field(ge=0, le=0x1FF)]
    bars_mib: TransportBars
    registers: Mapping[RegisterOffset, Uint32] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """A kind of GPU: everything about it that a guest can see."""

    name: str
    title: str
    architecture: str
    pci: PciIdentity
    chip: int
    bars_mib: TransportBars
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
class Catalogue:
    """The GPU models that can be had, by name."""

    folders: tuple[Path, ...]
    models: Mapping[str, GpuModel]

    def get(self, name: str) -> GpuModel:
        """Return the model called `name`; raises BadInputError that lists the known ones."""
        try:
            return self.models[name]
        except KeyError:
            raise BadInputError(
                f"There is no GPU model '{name}'; known are {listed(sorted(self.models))}. "
                "Add one by a file of that name, such as 'my-gpu.yaml'.",
                source=", ".join(str(folder) for folder in self.folders),
            ) from None


def load_catalogue(*folders: Path) -> Catalogue:
    """Read the models that come with the harness, and every `*.yaml` of `folders`.

    Raises BadInputError where a file is wrong, or names a model that there already is.
    """
    every = (Path(__file__).parent / "models", *folders)
    models: dict[str, GpuModel] = {}
    for folder in every:
        if not folder.is_dir():
            raise BadInputError("There is no folder here to read models from.", source=str(folder))
        for file in sorted(folder.glob("*.yaml")):
            model = read_model(file)
            if model.name in models:
                raise BadInputError(
                    f"There already is a GPU model '{model.name}'; give this file another name.",
                    source=str(file),
                )
            models[model.name] = model
    return Catalogue(folders=every, models=models)


def read_model(file: Path) -> GpuModel:
    """Read one model; its name is the file's. Raises BadInputError."""
    if not _MODEL_NAME.fullmatch(file.stem):
        raise BadInputError(
            f"'{file.stem}' cannot name a model; use lower-case letters, digits, '-' and '.'.",
            source=str(file),
        )
    content = read_data_file(file, ModelFile)
    if 0 not in content.bars_mib.mpqemu:
        raise BadInputError(
            "BAR 0, which holds the registers, is missing.",
            source=str(file),
            key="bars_mib.mpqemu",
        )
    return GpuModel(
        name=file.stem,
        title=content.title,
        architecture=content.architecture,
        pci=content.pci,
        chip=content.chip,
        bars_mib=content.bars_mib,
        extra_registers=content.registers,
    )


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


def root_port_window_mib(bars_mib: Mapping[int, int]) -> int:
    """Return the window in MiB that a root port needs for these BARs: a power of two, 64 or more.

    BARs are aligned to their size, so the sum rounded up to a power of two has room for all.
    """
    return max(64, 1 << (sum(bars_mib.values()) - 1).bit_length())


def _escaped(value: str) -> str:
    """Return `value` as QEMU's option parser takes it: a comma is written twice."""
    return value.replace(",", ",,")
