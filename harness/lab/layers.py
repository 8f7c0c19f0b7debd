"""States of machines that tests begin from, and how each is made from the one below."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cloudinit import UserData, render_seed
from harness.errors import HarnessError
from harness.lab.machine import LET_GO
from harness.machine.argv import Channels, render_argv
from harness.machine.spec import DirectKernel, Firmware, MachineSpec, MemoryFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.image import Image, Kernel
    from harness.lab.machine import LabMachine
    from harness.machine.spec import Accelerator

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
class Layer:
    """A state of a machine; a checkpoint holds it once somebody has asked for it.

    A layer without a parent is an image booted up to the point just before cloud-init. Any other
    one is its parent after `make` has been run on it. `parts` name all that the result depends
    on beside the parent: the checkpoint is made again when one of them changes.
    """

    name: str
    image: Image
    kernel: Kernel
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
        has_apertures: bool = False,
    ) -> MachineSpec:
        """Return a machine of this layer; its memory file is set by whoever starts it."""
        spec = node_spec(
            name,
            image=self.image,
            kernel=self.kernel,
            accelerator=accelerator,
            qemu=qemu,
            disk=disk,
            memory_mib=self.memory_mib,
            slots=self.slots,
            has_apertures=has_apertures,
        )
        return replace(spec, extra_append=_HOLD)


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
        image=image,
        kernel=kernel,
        memory_mib=memory_mib,
        slots=max(slots, _SLOTS),
    )


def cloud_init_done(layer: Layer) -> Layer:
    """Return the layer in which cloud-init has run, with a seed that only names the machine."""
    seed = render_seed(UserData(hostname="clone"), instance_id="clone")

    def make(machine: LabMachine) -> None:
        machine.run_cloud_init(seed)

    return layer.then(
        f"{layer.image.name}-cloud-init-done",
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
        root_port_aperture_mib=_aperture_mib(slots) if has_apertures else 0,
        qemu=qemu,
    )


def _aperture_mib(slots: int) -> int:
    """Return each slot's share of the address space above memory, a power of two."""
    return 1 << (_APERTURES_MIB // slots).bit_length() - 1


def key_parts(layer: Layer, spec: MachineSpec) -> Mapping[str, object]:
    """Return all that the bytes of a layer's checkpoint depend on, beside its parent's key.

    The command line says machine type, CPU, memory and devices; paths in it are made neutral,
    since the image's key stands for what lies there.
    """
    neutral = replace(
        spec,
        name="checkpoint",
        disk=Path("disk"),
        seed=None,
        kernel=_neutral_kernel(spec.kernel),
        memory_file=MemoryFile(path=Path("ram"), is_private=False),
        is_restored=False,
    )
    channels = Channels(qmp_fd=0, serial_fd=0, agent_fd=0)
    return {
        "argv": render_argv(neutral, channels, serial_log=Path("serial.log")),
        "image": layer.image.key,
        "kernel": layer.kernel.version,
        **layer.parts,
    }


def _neutral_kernel(kernel: DirectKernel | Firmware) -> DirectKernel | Firmware:
    if isinstance(kernel, Firmware):
        return kernel
    return replace(kernel, vmlinuz=Path("vmlinuz"), initrd=Path("initrd"))


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
