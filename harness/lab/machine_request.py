"""One value that describes a machine to start, and the one function that makes its spec of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from harness.cloudinit import write_seed
from harness.machine.description.spec import DirectKernel, MachineSpec, MemoryFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from harness.cloudinit import SeedFiles
    from harness.gpu.script import GpuScript
    from harness.image.store import ImageStore
    from harness.lab.gpu_sources import RequestedGpu
    from harness.lab.machine_bundle import MachineBundle
    from harness.machine.checkpoint.store import Checkpoint
    from harness.machine.description.spec import Accelerator, Firmware, HostPort

#: The name of the seed volume in a machine's folder.
SEED = "seed.iso"
_DISK = "disk.qcow2"
_KERNEL_HEADER = "kernel-header"

#: More than the set-up code of any kernel; Documentation/arch/x86/boot.rst has 64 sectors at most.
_KERNEL_HEADER_BYTES = 64 << 10


class BootSource(Protocol):
    """What a machine boots: a disk, and the kernel or firmware that starts from it."""

    @property
    def name(self) -> str:
        """Return the image's name."""

    def disk_sha256(self) -> str:
        """Return the digest of the disk, as the image's manifest has it."""

    @property
    def disk(self) -> Path:
        """Return the image that lies below the machine's own overlay."""

    @property
    def disk_gib(self) -> int | None:
        """Return the size of the overlay, or None for the size of the image."""

    @property
    def kernel_append(self) -> tuple[str, ...]:
        """Return what is added to the kernel's command line."""

    def kernel(self, folder: Path) -> DirectKernel | Firmware:
        """Return what starts the machine; `folder` has the files that `prepare` creates."""

    def prepare(self, folder: Path) -> None:
        """Create the files of one machine that `kernel` names."""


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What all machines of a run have in common: the accelerator and its QEMU.

    All root ports of a machine together reserve at most `apertures_mib` for 64-bit BARs. An emulated
    guest is told `tsc_khz`, the frequency of the host's time stamp counter.
    """

    accelerator: Accelerator
    qemu: str
    apertures_mib: int = 0
    tsc_khz: int | None = None


@dataclass(frozen=True, kw_only=True)
class MachineRequest:
    """A machine as requested, before it has a folder.

    With a `checkpoint` it continues from there: its disk is an overlay on the checkpoint's, and it
    maps the checkpoint's memory privately unless a `memory_file` is named. Without one it boots
    `source`. A `disk` of its own replaces the overlay. `slots` is the number of root ports for
    GPUs, `host_ports` what the guest reaches of the host. One that `has_iommu` can pass them on. `seed` renders the seed volume for an instance-id; a booting machine has it from the
    start, and one that continues has it in its folder, to be plugged. A machine that a person keeps
    has the time of its end in `kept_until`, in seconds of the epoch. One that is `resumed` is that of a
    bundle, whatever else its request says.
    """

    name: str
    source: BootSource
    memory_mib: int
    slots: int
    cpus: int = 1
    checkpoint: Checkpoint | None = None
    memory_file: MemoryFile | None = None
    disk: Path | None = None
    seed: Callable[[str], SeedFiles] | None = None
    gpus: Sequence[RequestedGpu] = ()
    gpu_scripts: Mapping[str, GpuScript] = field(default_factory=dict)
    hostname: str | None = None
    has_iommu: bool = False
    host_ports: Sequence[HostPort] = ()
    kept_until: float | None = None
    resumed: MachineBundle | None = None


def finish_spec(request: MachineRequest, platform: Platform, folder: Path) -> MachineSpec:
    """Return the spec of a requested machine whose files lie in `folder`; it creates nothing."""
    if request.resumed is not None:
        from harness.lab.machine_bundle import with_own_variables  # noqa: PLC0415 - few are

        return replace(
            with_own_variables(request.resumed.spec, folder),
            name=request.name,
            disk=folder / _DISK,
            qemu=platform.qemu,
        )
    kernel, memory, seed = request.source.kernel(folder), request.memory_file, None
    if request.checkpoint is not None:
        memory = memory or MemoryFile(path=request.checkpoint.ram, is_private=True)
        if isinstance(kernel, DirectKernel):
            kernel = replace(kernel, vmlinuz=folder / _KERNEL_HEADER)
    elif request.seed is not None:
        seed = folder / SEED
    return MachineSpec(
        name=request.name,
        accelerator=platform.accelerator,
        kernel=kernel,
        disk=request.disk or folder / _DISK,
        seed=seed,
        memory_mib=request.memory_mib,
        cpus=request.cpus,
        root_ports=request.slots,
        root_port_aperture_mib=slot_aperture_mib(platform.apertures_mib, request.slots),
        has_iommu=request.has_iommu,
        memory_file=memory,
        is_restored=request.checkpoint is not None,
        qemu=platform.qemu,
        host_ports=tuple(request.host_ports),
        extra_append=(*request.source.kernel_append, *_told(kernel, platform)),
    )


def _told(kernel: DirectKernel | Firmware, platform: Platform) -> tuple[str, ...]:
    """Return the kernel's arguments that say what an emulated guest can't find out on a busy host."""
    if platform.tsc_khz is None or not isinstance(kernel, DirectKernel) or kernel.is_verbatim:
        return ()
    return (f"tsc_early_khz={platform.tsc_khz}",)


def create_files(request: MachineRequest, folder: Path, images: ImageStore) -> None:
    """Create the files that the spec of a requested machine names in `folder`."""
    checkpoint, source = request.checkpoint, request.source
    if request.resumed is not None:
        request.resumed.create_files(source.disk, folder)
        return
    if request.disk is None:
        if checkpoint is None:
            images.create_overlay(source.disk, folder / _DISK, size_gib=source.disk_gib)
        else:
            images.create_overlay(checkpoint.disk, folder / _DISK)
    if request.seed is not None:
        write_seed(request.seed(f"{request.name}-{folder.name}"), folder / SEED)
    source.prepare(folder)
    kernel = source.kernel(folder)
    if checkpoint is not None and isinstance(kernel, DirectKernel):
        _copy_kernel_header(kernel.vmlinuz, folder / _KERNEL_HEADER)


def _copy_kernel_header(vmlinuz: Path, header: Path) -> None:
    """Copy what QEMU needs of the kernel of a restored machine.

    The guest has its kernel in memory, but QEMU has to place the option ROM of `-kernel` as it did
    for the template. It needs no more of the file than its header, and reading all of it takes
    10 ms of a clone's 200.
    """
    with vmlinuz.open("rb") as kernel:
        header.write_bytes(kernel.read(_KERNEL_HEADER_BYTES))


def slot_aperture_mib(apertures_mib: int, slots: int) -> int:
    """Return each slot's share of the address space above memory, a power of two, or 0."""
    share = apertures_mib // slots
    return share and 1 << share.bit_length() - 1
