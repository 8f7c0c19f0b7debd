"""The catalogue of GPU models and GPU nodes, read from YAML files of the harness and of users."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeVar

import pydantic
from pydantic import AfterValidator, Field

from harness.datafile import line_of, read_data_file
from harness.entry_points import Group, Plugin, PluginError, plugins
from harness.errors import BadInputError, listed
from harness.gpu import (
    Bar,
    DriverKind,
    GpuKind,
    GpuModel,
    GpuNode,
    GspFacts,
    PciIdentity,
    TransportBars,
)
from harness.settings import GpuEmulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_NAME = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")
_FORBID: pydantic.ConfigDict = pydantic.ConfigDict(extra="forbid")
_NODES = "nodes"
_SHIPPED = Path(__file__).parent / "models"


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError(
            "A BAR's size is a power of two, since the BAR's low address bits are hard-wired"
        )
    return value


Uint8 = Annotated[int, Field(ge=0, le=0xFF)]
Uint16 = Annotated[int, Field(ge=0, le=0xFFFF)]
Uint24 = Annotated[int, Field(ge=0, le=0xFFFFFF)]
Uint32 = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
Text = Annotated[str, Field(min_length=1)]
BarIndex = Annotated[int, Field(ge=0, le=5)]
#: The index of a 64-bit BAR, which also occupies the next index.
WideBarIndex = Annotated[int, Field(ge=0, le=4)]
#: QEMU 7.2 aborts on a 2 GiB BAR behind `x-pci-proxy-dev`; 256 MiB works.
NarrowMib = Annotated[int, Field(ge=1, le=256), AfterValidator(_power_of_two)]
#: Real GPUs have BARs of some hundreds of GiB at most.
WideMib = Annotated[int, Field(ge=1, le=1 << 20), AfterValidator(_power_of_two)]
RegisterOffset = Annotated[int, Field(ge=0, le=0xFFFFFC, multiple_of=4)]


@dataclass(frozen=True, kw_only=True)
class PciKeys:
    """The key `pci` of a model's file."""

    __pydantic_config__ = _FORBID

    vendor: Uint16
    """Vendor id; 0x10de is NVIDIA."""
    device: Uint16
    """Device id."""
    subsystem_vendor: Uint16
    """Subsystem vendor id."""
    subsystem: Uint16
    """Subsystem id; NVIDIA's driver also uses this id to find the model's name."""
    class_code: Uint24
    """Class code of three bytes; 0x030200 is a 3D controller."""
    revision: Uint8
    """Revision."""


@dataclass(frozen=True, kw_only=True)
class BarKeys:
    """The key `bars_mib` of a model's file: sizes in MiB by index."""

    __pydantic_config__ = _FORBID

    mpqemu: Annotated[Mapping[BarIndex, NarrowMib], Field(min_length=1)]
    """Sizes of memory BARs in MiB by index: powers of two up to 256; BAR 0 is required."""
    vfio_user: Mapping[BarIndex, NarrowMib] = field(default_factory=dict)
    """Sizes of 32-bit BARs over vfio-user; if no vfio-user key is set, the sizes in `mpqemu` apply."""
    vfio_user_64bit: Mapping[WideBarIndex, WideMib] = field(default_factory=dict)
    """Sizes of 64-bit BARs over vfio-user; each BAR also occupies the next index."""


@dataclass(frozen=True, kw_only=True)
class GspKeys:
    """The key `gsp` of a model's file: what the system processor (GSP) tells NVIDIA's driver."""

    __pydantic_config__ = _FORBID

    facts_from: Text
    """The source of the values."""
    memory_mib: Annotated[int, Field(ge=1024, le=1 << 20)]
    """Memory in MiB as `nvidia-smi` shows its total."""
    memory_bus_bits: Annotated[int, Field(ge=64, le=8192)]
    """The width of the memory bus in bits."""
    l2_cache_mib: Annotated[int, Field(ge=1, le=1024)]
    """The size of the level 2 cache in MiB."""
    gpcs: Annotated[int, Field(ge=1, le=16)]
    """The number of graphics processing clusters (GPCs)."""
    tpcs: Annotated[int, Field(ge=1, le=128)]
    """The number of texture processing clusters (TPCs), each with two streaming multiprocessors."""
    vbios: Annotated[str, Field(pattern=r"^[0-9A-F]{2}(\.[0-9A-F]{2}){4}$")]
    """The version of the video BIOS as `nvidia-smi` shows it."""
    copy_engines: Annotated[int, Field(ge=1, le=10)] = 5
    """The number of copy engines that the driver sees."""
    part_number: Annotated[str, Field(pattern=r"^[0-9A-Z-]{0,19}$")] = ""
    """The part number of the board; without this key, `nvidia-smi` shows N/A."""
    sku: Annotated[str, Field(pattern=r"^[0-9A-Z]{0,3}$")] = ""
    """The second part of the chip's part number, such as 885 in 2330-885-A1."""
    inforom: Annotated[str, Field(pattern=r"^[0-9A-Z.]{0,15}$")] = ""
    """The version of the infoROM's image; without this key, `nvidia-smi` shows N/A."""
    inforom_oem: tuple[Uint8, Uint8] = (2, 1)
    """The version of the infoROM's OEM object."""
    inforom_ecc: tuple[Uint8, Uint8] = (7, 16)
    """The version of the infoROM's ECC object, which determines the error counts that are shown."""
    memory_banks: Annotated[int, Field(ge=0, le=65535)] = 0
    """How many memory banks have spare rows."""
    power_limit_w: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """The default and highest power limit in W; without this key, `nvidia-smi` shows N/A."""
    least_power_limit_w: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """The lowest power limit in W that can be set."""
    shutdown_c: Annotated[int, Field(ge=0, le=200)] | None = None
    """The temperature in degrees Celsius at which the GPU switches itself off."""
    slowdown_c: Annotated[int, Field(ge=0, le=200)] | None = None
    """The temperature in degrees Celsius at which the GPU slows down."""
    operating_c: Annotated[int, Field(ge=0, le=200)] | None = None
    """The highest operating temperature in degrees Celsius; Ada and Hopper report the margin to it."""


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """The file of a GPU model; the file's name is the model's name.

    `chip` is NVIDIA's number of the chip, 0x180 for GH100. `registers` adds read-only registers
    of BAR0, by offset.
    """

    __pydantic_config__ = _FORBID

    schema: Literal[1] = 1
    """The version of this file's format."""
    title: Text
    """The name that NVIDIA's driver shows for this model."""
    architecture: Text
    """NVIDIA's name of the architecture."""
    pci: PciKeys
    ids_from: Text
    """The source of the PCI ids."""
    chip: Annotated[int, Field(ge=0, le=0x1FF)]
    """NVIDIA's number of the chip, which determines the boot registers."""
    bars_mib: BarKeys
    driver_kinds: Annotated[tuple[DriverKind, ...], Field(min_length=1)]
    """The kinds of NVIDIA driver for the model: `cuda`, `grid` or both; a node gets the first kind."""
    mig: bool
    """Whether the GPU supports MIG."""
    registers: Mapping[RegisterOffset, Uint32] = field(default_factory=dict)
    """Additional read-only registers of BAR 0: values by offset."""
    emulation: GpuEmulation = GpuEmulation.IDENTITY
    """The kind of emulation: `identity`, or `gsp`, with which NVIDIA's driver can open the GPU."""
    gsp: GspKeys | None = None
    """The facts of the system processor; NVIDIA's driver can't open a model without this key."""


@dataclass(frozen=True, kw_only=True)
class NodeFile:
    """The file of a kind of GPU node; the file's name is the kind's name."""

    __pydantic_config__ = _FORBID

    schema: Literal[1] = 1
    """The version of this file's format."""
    title: Text
    """A descriptive name, such as `8 x NVIDIA H100 80GB HBM3`."""
    model: Text
    """The name of the node's GPU model."""
    count: Annotated[int, Field(ge=1, le=16)]
    """How many GPUs the node has, at most 16."""
    vm_size: Text
    """The cloud's name of this kind of node."""
    fabric_manager: bool = False
    """Whether the node's GPUs need NVIDIA's fabric manager."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_T = TypeVar("_T", bound=_Named)


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """GPU models and kinds of GPU node, by name."""

    folders: tuple[Path, ...]
    models: Mapping[str, GpuModel]
    nodes: Mapping[str, GpuNode]
    errors: tuple[PluginError, ...] = ()
    """The errors of installed packages whose models can't be used."""

    def get(self, name: str) -> GpuModel:
        """Return the model `name`; raises BadInputError, which lists the known models."""
        return self._get(name, self.models, "GPU model", "my-gpu.yaml")

    def node(self, name: str) -> GpuNode:
        """Return the kind of node `name`; raises BadInputError, which lists the known kinds."""
        return self._get(name, self.nodes, "kind of GPU node", f"{_NODES}/my-node.yaml")

    @property
    def kinds(self) -> frozenset[GpuKind]:
        """Return the ids by which the models' GPUs are recognised on the PCI bus.

        Raises PluginError if the models of an installed package can't be used, since GPUs of these
        models would not be recognised.
        """
        if self.errors:
            raise self.errors[0]
        return frozenset(model.pci.kind for model in self.models.values())

    def _get(self, name: str, found: Mapping[str, _T], what: str, example: str) -> _T:
        try:
            return found[name]
        except KeyError:
            broken = "".join(f" {error}" for error in self.errors)
            raise BadInputError(
                f"There is no {what} '{name}', only {listed(sorted(found))}. "
                f"To add a {what}, write a file with its name, such as '{example}'.{broken}",
                source=", ".join(str(folder) for folder in self.folders),
            ) from None


def load_catalogue(*folders: Path) -> Catalogue:
    """Read the harness's own catalogue, and `*.yaml` and `nodes/*.yaml` in each of `folders`.

    The folders of installed packages (`Group.GPU_MODELS`) are read too. If a package can't be used,
    `errors` of the catalogue says why. Raises BadInputError if a file in `folders` is invalid, or
    if two files have the same name.
    """
    catalogue = _shipped()
    for plugin in plugins(Group.GPU_MODELS):
        catalogue = _with_plugin(catalogue, plugin)
    for folder in folders:
        if not folder.is_dir():
            raise BadInputError("The folder of GPU models does not exist.", source=str(folder))
    return _extended(catalogue, *folders)


def find_model(name: str, *folders: Path) -> GpuModel:
    """Return the model `name` of the catalogue; read only the files that are needed for it.

    Raises BadInputError, which lists the known models.
    """
    shipped = _SHIPPED / f"{name}.yaml"
    if not folders and _NAME.fullmatch(name) and shipped.is_file():
        return read_model(shipped)
    return load_catalogue(*folders).get(name)


@functools.cache
def _shipped() -> Catalogue:
    """Read the harness's own models once, since their files don't change while the harness runs."""
    return _extended(Catalogue(folders=(), models={}, nodes={}), _SHIPPED)


def _with_plugin(catalogue: Catalogue, plugin: Plugin) -> Catalogue:
    """Add the models of an installed package, or the error that says why they can't be used."""
    try:
        return _extended(catalogue, plugin.folder())
    except PluginError as error:
        return replace(catalogue, errors=(*catalogue.errors, error))
    except BadInputError as error:
        refused = plugin.error(str(error).rstrip("."))
        return replace(catalogue, errors=(*catalogue.errors, refused))


def _extended(catalogue: Catalogue, *folders: Path) -> Catalogue:
    models = _read_each(
        (file for folder in folders for file in _files(folder)), read_model, catalogue.models
    )
    nodes = _read_each(
        (file for folder in folders for file in _files(folder / _NODES)),
        lambda file: read_node(file, models),
        catalogue.nodes,
    )
    return replace(catalogue, folders=(*catalogue.folders, *folders), models=models, nodes=nodes)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def _read_each(
    files: Iterable[Path], read: Callable[[Path], _T], known: Mapping[str, _T]
) -> dict[str, _T]:
    """Return the `known` models and the models that the files describe."""
    found = {**known}
    for file in files:
        if not _NAME.fullmatch(file.stem):
            raise BadInputError(
                f"'{file.stem}' is not a GPU name; use lower-case letters, digits, '-' and '.'.",
                source=str(file),
            )
        one = read(file)
        if one.name in found:
            raise BadInputError(
                f"Another folder has a model '{one.name}' too; rename this file.",
                source=str(file),
            )
        found[one.name] = one
    return found


def read_model(file: Path) -> GpuModel:
    """Read one model; its name is the name of the file. Raises BadInputError."""
    content = read_data_file(file, ModelFile)
    return GpuModel(
        name=file.stem,
        title=content.title,
        architecture=content.architecture,
        pci=PciIdentity(
            vendor=content.pci.vendor,
            device=content.pci.device,
            subsystem_vendor=content.pci.subsystem_vendor,
            subsystem=content.pci.subsystem,
            class_code=content.pci.class_code,
            revision=content.pci.revision,
        ),
        ids_from=content.ids_from,
        chip=content.chip,
        bars=_bars(content.bars_mib, file),
        driver_kinds=content.driver_kinds,
        has_mig=content.mig,
        extra_registers=content.registers,
        emulation=content.emulation,
        gsp=None if content.gsp is None else GspFacts(**dataclasses.asdict(content.gsp)),
    )


def _bars(keys: BarKeys, file: Path) -> TransportBars:
    mpqemu = {index: Bar(mib=mib) for index, mib in keys.mpqemu.items()}
    vfio_user = {index: Bar(mib=mib) for index, mib in keys.vfio_user.items()}
    for index, mib in keys.vfio_user_64bit.items():
        for taken in (index, index + 1):
            if taken in vfio_user or (taken != index and taken in keys.vfio_user_64bit):
                raise BadInputError(
                    f"The 64-bit BAR {index} occupies the indices {index} and {index + 1}, but "
                    f"there is another BAR {taken}.",
                    source=str(file),
                    line=line_of(file, ("bars_mib", "vfio_user_64bit", index)),
                    key=f"bars_mib.vfio_user_64bit.{index}",
                )
        vfio_user[index] = Bar(mib=mib, bits=64)
    bars = TransportBars(mpqemu=mpqemu, vfio_user=vfio_user or mpqemu)
    for transport, column in (("mpqemu", bars.mpqemu), ("vfio_user", bars.vfio_user)):
        if 0 not in column:
            raise BadInputError(
                "BAR 0, which has the registers, is missing.",
                source=str(file),
                key=f"bars_mib.{transport}",
            )
    return bars


def read_node(file: Path, models: Mapping[str, GpuModel]) -> GpuNode:
    """Read one kind of node; its name is the name of the file. Raises BadInputError."""
    content = read_data_file(file, NodeFile)
    if content.model not in models:
        raise BadInputError(
            f"There is no GPU model '{content.model}'; the known models are {listed(sorted(models))}.",
            source=str(file),
            line=line_of(file, ("model",)),
            key="model",
        )
    return GpuNode(
        name=file.stem,
        title=content.title,
        model=models[content.model],
        count=content.count,
        vm_size=content.vm_size,
        needs_fabric_manager=content.fabric_manager,
    )
