"""The description of a machine to start, and the pure function that makes the description."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from harness.cloudinit import write_seed
from harness.machine.description.spec import (
    DEFAULT_CPUS,
    DirectKernel,
    MachineSpec,
    MemoryFile,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.cloudinit import SeedFiles
    from harness.gpu.script import GpuScript
    from harness.image.store import ImageStore
    from harness.lab.gpu_sources import RequestedGpu
    from harness.lab.machine_bundle import MachineBundle
    from harness.machine.checkpoint.store import Checkpoint
    from harness.machine.description.spec import Accelerator, Firmware, HostPort

#: The file name of the seed volume in a machine's folder.
SEED = "seed.iso"
#: The file name of a machine's disk in the machine's folder.
DISK = "disk.qcow2"
_KERNEL_HEADER = "kernel-header"

#: The size of a header in bytes: more than any kernel's set-up code, which
#: Documentation/arch/x86/boot.rst limits to 64 sectors.
_KERNEL_HEADER_BYTES = 64 << 10


class DiskSource(Protocol):
    """The backing file of a machine's disk."""

    @property
    def name(self) -> str:
        """Return the image's name."""

    def disk_sha256(self) -> str:
        """Return the digest of the disk, from the image's manifest."""

    @property
    def disk(self) -> Path:
        """Return the path of the backing file of the machine's overlay."""

    def prepare(self, folder: Path) -> None:
        """Create the files that only this source provides, in a machine's folder."""


class BootSource(DiskSource, Protocol):
    """The boot source of a machine: a disk, and the kernel or firmware that boots from the disk."""

    @property
    def disk_gib(self) -> int | None:
        """Return the size of the overlay, or None for the size of the image."""

    @property
    def kernel_append(self) -> tuple[str, ...]:
        """Return the words that are added to the kernel's command line."""

    def kernel(self, folder: Path) -> DirectKernel | Firmware:
        """Return the kernel or firmware of a machine. `prepare` has made the files in `folder`."""


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The facts that all machines of a run share, such as the accelerator and its QEMU.

    All root ports of a machine together reserve at most `apertures_mib` for 64-bit BARs. `tsc_khz`
    is the frequency of the host's time stamp counter. An emulated guest gets that frequency as a
    kernel argument. With `lacks_gpu_interrupts`, guests poll their devices.
    """

    accelerator: Accelerator
    qemu: str
    apertures_mib: int = 0
    tsc_khz: int | None = None
    lacks_gpu_interrupts: bool = False


@dataclass(frozen=True, kw_only=True)
class MachineDescription:
    """All facts that the start of a machine needs. The VM driver renders `spec`.

    `create_files` makes the machine's files in `folder`. The disk is an overlay of `disk_gib` on
    `backing`, unless `backing` is None. A machine with a `checkpoint` or a `bundle` continues from
    this saved state. Any other machine boots. A machine that boots has the `seed` volume from the
    start. The volume is plugged into a machine that continues. QEMU reads only the header of the
    kernel `vmlinuz` if the machine is restored. The guest of a restored machine gets the name
    `hostname`. A machine that was kept ends at `kept_until`, in seconds since the epoch.
    """

    spec: MachineSpec
    folder: Path
    source: DiskSource
    backing: Path | None = None
    disk_gib: int | None = None
    seed: SeedFiles | None = None
    vmlinuz: Path | None = None
    checkpoint: Checkpoint | None = None
    bundle: MachineBundle | None = None
    gpus: Sequence[RequestedGpu] = ()
    gpu_scripts: Mapping[str, GpuScript] = field(default_factory=dict)
    hostname: str | None = None
    kept_until: float | None = None

    @property
    def is_continued(self) -> bool:
        """Return whether the machine continues from a saved state instead of booting."""
        return self.checkpoint is not None or self.bundle is not None


def describe(
    name: str,
    source: BootSource,
    platform: Platform,
    folder: Path,
    *,
    memory_mib: int,
    slots: int,
    cpus: int = DEFAULT_CPUS,
    has_iommu: bool = False,
    host_ports: Sequence[HostPort] = (),
    checkpoint: Checkpoint | None = None,
    memory_file: MemoryFile | None = None,
    disk: Path | None = None,
    seed: SeedFiles | None = None,
) -> MachineDescription:
    """Return the description of a machine whose files are in `folder`. This function is pure.

    Without a `checkpoint`, the machine boots `source`. A machine with a checkpoint continues from
    the checkpoint, and its memory is by default a private mapping of the checkpoint's memory.
    `memory_file` replaces the memory. `disk` replaces the overlay. `slots` is the number of root
    ports for GPUs. `host_ports` are the host's ports that the guest can reach.
    """
    kernel, vmlinuz = source.kernel(folder), None
    if checkpoint is not None:
        memory_file = memory_file or MemoryFile(path=checkpoint.ram, is_private=True)
        if isinstance(kernel, DirectKernel):
            vmlinuz, kernel = kernel.vmlinuz, replace(kernel, vmlinuz=folder / _KERNEL_HEADER)
    spec = MachineSpec(
        name=name,
        accelerator=platform.accelerator,
        kernel=kernel,
        disk=disk or folder / DISK,
        seed=folder / SEED if seed is not None and checkpoint is None else None,
        memory_mib=memory_mib,
        cpus=cpus,
        root_ports=slots,
        root_port_aperture_mib=slot_aperture_mib(platform.apertures_mib, slots),
        has_iommu=has_iommu,
        memory_file=memory_file,
        is_restored=checkpoint is not None,
        qemu=platform.qemu,
        host_ports=tuple(host_ports),
        extra_append=(*source.kernel_append, *_arguments_for_guest(kernel, platform)),
    )
    backing = source.disk if checkpoint is None else checkpoint.disk
    return MachineDescription(
        spec=spec,
        folder=folder,
        source=source,
        backing=backing if disk is None else None,
        disk_gib=source.disk_gib if checkpoint is None else None,
        seed=seed,
        vmlinuz=vmlinuz,
        checkpoint=checkpoint,
    )


def _arguments_for_guest(kernel: DirectKernel | Firmware, platform: Platform) -> tuple[str, ...]:
    """Return kernel arguments with facts that a guest can't detect by itself."""
    if not isinstance(kernel, DirectKernel) or kernel.is_verbatim:
        return ()
    # On a busy host an emulated guest measures a wrong frequency of its time stamp counter.
    frequency = () if platform.tsc_khz is None else (f"tsc_early_khz={platform.tsc_khz}",)
    # `irqpoll` polls at each IRQ 0. The timer raises IRQ 0 only if the local APIC's timer is off.
    polling = ("irqpoll", "nolapic_timer") if platform.lacks_gpu_interrupts else ()
    return (*frequency, *polling)


def slot_aperture_mib(apertures_mib: int, slots: int) -> int:
    """Return each slot's share, in MiB, of the address space above memory: a power of two, or 0."""
    share = apertures_mib // slots
    return share and 1 << share.bit_length() - 1


def create_files(description: MachineDescription, images: ImageStore) -> None:
    """Create the files of a machine in the folder that its description names."""
    folder = description.folder
    if description.backing is not None:
        images.create_overlay(
            description.backing, description.spec.disk, size_gib=description.disk_gib
        )
    if description.seed is not None:
        write_seed(description.seed, folder / SEED)
    description.source.prepare(folder)
    if description.vmlinuz is not None:
        _copy_kernel_header(description.vmlinuz, folder / _KERNEL_HEADER)


def _copy_kernel_header(vmlinuz: Path, header: Path) -> None:
    """Copy the part of the kernel that QEMU reads for a restored machine.

    The guest has its kernel in memory, but QEMU has to place the option ROM of `-kernel` as in the
    template. To place the ROM, QEMU needs only the header. Reading the whole kernel would take 10
    ms of the 200 ms in which a clone starts.
    """
    with vmlinuz.open("rb") as kernel:
        header.write_bytes(kernel.read(_KERNEL_HEADER_BYTES))
