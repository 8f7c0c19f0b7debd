"""States of machines that tests begin from, and how each is made from the one below."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.cloudinit import UserData, render_seed
from harness.errors import HarnessError
from harness.image import manifest
from harness.lab.machine import LET_GO
from harness.machine.spec import DirectKernel, MachineSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.image import Image, Kernel
    from harness.lab.machine import LabMachine
    from harness.machine import VmDriver
    from harness.machine.spec import Accelerator

#: Seconds that KVM is given to boot what is to become a checkpoint.
_BOOT_KVM_S = 30.0

#: Slots that every machine has, so that one checkpoint serves nodes with few GPUs and with none.
#: Each more costs every clone some three milliseconds.
_SLOTS = 4
_MEMORY_MIB = 1536
#: Half of what a processor under TCG can address, 40 bits.
_APERTURES_MIB = 512 << 10

#: A machine that is to become a checkpoint stops short of cloud-init: `cloud-init.target` hangs
#: on the target that is not started. What cloud-init has no part in is started already.
_HOLD = ("systemd.unit=basic.target", "systemd.wants=containerd.service")

#: What the machine has to have reached before its state is saved.
HELD_UNITS = ("basic.target", "containerd.service")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What machines of one layer have in common, whatever their image."""

    accelerator: Accelerator
    qemu: str
    memory_mib: int
    slots: int
    has_apertures: bool


class Origin(Protocol):
    """The image of which a layer's first machine is booted, and how it is."""

    @property
    def name(self) -> str: ...

    @property
    def disk(self) -> Path: ...

    @property
    def disk_gib(self) -> int | None:
        """Return how large the disk is made, or None for as large as it is."""
        ...

    def parts(self) -> Mapping[str, object]:
        """Return what of it the state depends on beside the command line."""
        ...

    def disk_sha256(self) -> str: ...

    def spec(self, name: str, shape: Shape, *, disk: Path, folder: Path) -> MachineSpec:
        """Return a machine of it; `folder` is where `prepare` leaves files of the machine's own."""
        ...

    def prepare(self, spec: MachineSpec, folder: Path, *, is_first: bool) -> MachineSpec:
        """Make what such a machine needs in its folder; the first one has to boot yet."""
        ...

    def settle(self, machine: LabMachine) -> None:
        """Wait until the first machine has come where the layer begins."""
        ...


@dataclass(frozen=True, kw_only=True)
class BuiltOrigin:
    """A built image and one of its kernels, held just before cloud-init."""

    image: Image
    kernel: Kernel
    disk_gib: int | None = None

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def disk(self) -> Path:
        return self.image.disk

    def parts(self) -> Mapping[str, object]:
        return {"image": self.image.key, "kernel": self.kernel.version}

    def disk_sha256(self) -> str:
        # An image that was built again under its key has other blocks for an overlay.
        return manifest.KIND.read(self.image.folder).files[manifest.DISK].sha256

    def spec(self, name: str, shape: Shape, *, disk: Path, folder: Path) -> MachineSpec:
        del folder
        spec = node_spec(
            name,
            image=self.image,
            kernel=self.kernel,
            accelerator=shape.accelerator,
            qemu=shape.qemu,
            disk=disk,
            memory_mib=shape.memory_mib,
            slots=shape.slots,
            has_apertures=shape.has_apertures,
        )
        return replace(spec, extra_append=_HOLD)

    def prepare(self, spec: MachineSpec, folder: Path, *, is_first: bool) -> MachineSpec:
        del folder, is_first
        return spec

    def settle(self, machine: LabMachine) -> None:
        for unit in HELD_UNITS:
            machine.agent.wait_for_unit(unit, machine.deadline(_BOOT_KVM_S))


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A state of a machine; a checkpoint holds it once somebody has asked for it.

    A layer without a parent is its origin: a built image booted up to the point just before
    cloud-init, or a stock image just after. Any other one is its parent after `make` has been run
    on it. `parts` name all that the result depends on beside the parent: the checkpoint is made
    again when one of them changes.
    """

    name: str
    origin: Origin
    memory_mib: int = _MEMORY_MIB
    slots: int = _SLOTS
    parent: Layer | None = None
    make: Callable[[LabMachine], None] | None = field(default=None, compare=False)
    parts: Mapping[str, str] = field(default_factory=dict, hash=False)

    def then(
        self,
        name: str,
        make: Callable[[LabMachine], None],
        parts: Mapping[str, str] | None = None,
    ) -> Layer:
        """Return the layer that `make` brings this one to.

        Without `parts` the whole source of the module that defines `make` counts: what a
        function calls can't be told from its own text. Raises HarnessError where there is none.
        """
        return replace(
            self,
            name=name,
            parent=self,
            make=make,
            parts=source_parts(make) if parts is None else parts,
        )

    def spec(
        self,
        name: str,
        *,
        accelerator: Accelerator,
        qemu: str,
        disk: Path,
        folder: Path = Path(),
        has_apertures: bool = False,
    ) -> MachineSpec:
        """Return a machine of this layer; its memory file is set by whoever starts it."""
        shape = Shape(
            accelerator=accelerator,
            qemu=qemu,
            memory_mib=self.memory_mib,
            slots=self.slots,
            has_apertures=has_apertures,
        )
        return self.origin.spec(name, shape, disk=disk, folder=folder)


def booted(
    image: Image,
    kernel: Kernel | None = None,
    *,
    memory_mib: int = _MEMORY_MIB,
    slots: int = _SLOTS,
) -> Layer:
    """Return the layer of an image booted up to the point just before cloud-init."""
    kernel = kernel or image.newest_kernel
    return Layer(
        name=f"{image.name}-booted",
        origin=BuiltOrigin(image=image, kernel=kernel),
        memory_mib=memory_mib,
        slots=max(slots, _SLOTS),
    )


def cloud_init_done(layer: Layer) -> Layer:
    """Return the layer in which cloud-init has run, with a seed that only names the machine."""
    seed = render_seed(UserData(hostname="clone"), instance_id="clone")

    def make(machine: LabMachine) -> None:
        machine.run_cloud_init(seed)

    return layer.then(
        f"{layer.origin.name}-cloud-init-done",
        make,
        {"seed": hashlib.sha256(repr(seed).encode()).hexdigest(), "let_go": LET_GO},
    )


def node_spec(
    name: str,
    *,
    image: Image,
    kernel: Kernel | None,
    accelerator: Accelerator,
    qemu: str,
    disk: Path,
    memory_mib: int = _MEMORY_MIB,
    slots: int = _SLOTS,
    has_apertures: bool = False,
) -> MachineSpec:
    """Return a machine as nodes are; its `slots` take GPUs, 64-bit BARs where it `has_apertures`."""
    slots = max(slots, _SLOTS)
    kernel = kernel or image.newest_kernel
    return MachineSpec(
        name=name,
        accelerator=accelerator,
        kernel=DirectKernel(version=kernel.version, vmlinuz=kernel.vmlinuz, initrd=kernel.initrd),
        disk=disk,
        memory_mib=memory_mib,
        root_ports=slots,
        root_port_aperture_mib=aperture_mib(slots) if has_apertures else 0,
        qemu=qemu,
    )


def aperture_mib(slots: int) -> int:
    """Return each slot's share of the address space above memory, a power of two."""
    return 1 << (_APERTURES_MIB // slots).bit_length() - 1


def key_parts(layer: Layer, spec: MachineSpec, driver: VmDriver) -> Mapping[str, object]:
    """Return all that the bytes of a layer's checkpoint depend on, beside its parent's key.

    What the driver tells of a machine names no paths: the image's key stands for what lies there.
    """
    return {
        **driver.state_parts(spec),
        **layer.origin.parts(),
        **layer.parts,
    }


def source_parts(make: Callable[[LabMachine], None]) -> Mapping[str, str]:
    """Name a function and the whole source of its module."""
    try:
        source = Path(inspect.getfile(make)).read_bytes()
    except (OSError, TypeError) as error:
        raise HarnessError(
            f"The layer's function {make!r} has no source file ({error}), so a change of it would "
            "go unseen; name what its result depends on by `parts`."
        ) from error
    return {"make": make.__qualname__, "module_sha256": hashlib.sha256(source).hexdigest()}
