"""The description of a machine as plain frozen data. The module runs no command."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.errors import BadInputError

#: The default memory of a guest. Machines with equal memory share checkpoints.
DEFAULT_MEMORY_MIB = 1536
#: The default memory of a distribution's own image.
DEFAULT_CLOUD_IMAGE_MEMORY_MIB = 1024
DEFAULT_CPUS = 1
#: The minimum number of GPU slots in a machine of a built image. With this minimum, nodes with no
#: GPU and nodes with few GPUs share one checkpoint. Each additional slot costs every clone some
#: three milliseconds.
DEFAULT_SLOTS = 4
#: Debian's kernels have the IOMMU's driver, but the driver is off by default.
_IOMMU_APPEND = "intel_iommu=on"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")


class Accelerator(enum.Enum):
    """How QEMU runs the guest's instructions: by KVM or TCG, with the settings for each.

    `kernel_append` switches off kernel features that are slow under emulation and are not under
    test. `patience` multiplies the time limits of the guest: TCG is about ten times slower than
    KVM.
    """

    KVM = ("kvm", "host", (), 1.0)
    TCG = (
        "tcg",
        # Five levels of page tables are walked in software, each access to user memory ends a
        # translated block, and `rep movsb` copies byte by byte: with these three features a boot
        # took a quarter longer. QEMU 11 also has `fsrm`. With `fsrm` but without `erms`, Linux 6.1
        # hangs in `memmove`.
        "max,-la57,-smap,-erms,-fsrm",
        (
            # QEMU 7.2 translated 2,500 blocks anew for each run of `true`, but only 250 if programs
            # have the same addresses each time. With the same addresses, a command takes half the
            # time.
            "norandmaps",
            # On a busy host the kernel would find any clock unstable.
            "tsc=reliable",
            # At its start Linux counts ticks of the timer (`timer_irq_works`). On a busy host the
            # guest misses ticks, and panics. Under KVM, Linux skips this check.
            "no_timer_check",
            "transparent_hugepage=never",
            # PSI, audit, memory cgroups and LSMs cost time at every fork, fault and task switch.
            "psi=0",
            "audit=0",
            "cgroup.memory=nokmem,nosocket",
            "lsm=lockdown,capability,landlock,yama,apparmor",
        ),
        10.0,
    )

    def __init__(
        self,
        accel: Literal["kvm", "tcg"],
        cpu_model: str,
        kernel_append: tuple[str, ...],
        patience: float,
    ) -> None:
        self.accel = accel
        self.cpu_model = cpu_model
        self.kernel_append = kernel_append
        self.patience = patience

    def to_qemu(self, cpus: int = 1) -> str:
        """Return the value of `-accel` for a machine with `cpus` vCPUs, each in its own thread."""
        if self is Accelerator.KVM:
            return self.accel
        return "tcg,thread=multi" if cpus > 1 else "tcg,thread=single"


@dataclass(frozen=True, kw_only=True)
class DirectKernel:
    """A kernel that QEMU loads itself, without firmware and boot loader.

    With `is_verbatim`, the command line is only `append` and the caller's words, without the
    accelerator's arguments. When the guest reboots, the machine ends. With `may_reboot`, QEMU loads
    the kernel again instead.
    """

    version: str
    vmlinuz: Path
    initrd: Path
    append: tuple[str, ...] = (
        "root=/dev/vda",
        "rw",
        "console=ttyS0",
        "panic=-1",
        "net.ifnames=0",
        "mitigations=off",
        "quiet",
    )
    is_verbatim: bool = False
    may_reboot: bool = False


@dataclass(frozen=True, kw_only=True)
class Flash:
    """Firmware in flash, such as OVMF: its code, and the machine's own variables."""

    code: Path
    variables: Path


@dataclass(frozen=True, kw_only=True)
class Firmware:
    """The machine's firmware, which finds a boot loader on the disk.

    Without `flash`, the firmware is QEMU's SeaBIOS. The boot loader chooses the kernel and its
    command line. The machine continues when its guest reboots.
    """

    flash: Flash | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryFile:
    """A file that is the guest's memory: written by a template, mapped privately by a clone."""

    path: Path
    is_private: bool


@dataclass(frozen=True, kw_only=True)
class HostPort:
    """A port of the host's loopback, and the address in the guest's network that leads to it.

    Addresses are in 10.0.2.0/24. QEMU uses 10.0.2.2, .3 and .15.
    """

    host_port: int
    guest_port: int
    guest_address: str = "10.0.2.100"


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    """The facts about a machine that a VM driver needs. `argv.render_argv` renders QEMU's argv.

    `root_ports` is the number of empty PCIe slots into which GPUs are plugged, at the start or
    later. Each port reserves `root_port_window_mib` of address space for the memory BARs of a
    hot-plugged function, and `root_port_aperture_mib` for the function's 64-bit BARs. With
    `is_restored`, the machine waits for the state that `Machine.restore` loads. All other fields
    must be the same as when that state was saved, except `host_ports`, which are not part of the
    guest.

    With `has_iommu` the machine has an IOMMU. A kernel that QEMU loads itself then switches the
    IOMMU on: each GPU is in its own IOMMU group, and VFIO in the guest can use the GPU.
    """

    name: str
    accelerator: Accelerator
    kernel: DirectKernel | Firmware
    disk: Path
    seed: Path | None = None
    memory_mib: int = DEFAULT_MEMORY_MIB
    cpus: int = DEFAULT_CPUS
    root_ports: int = 1
    root_port_window_mib: int = 64
    root_port_aperture_mib: int = 0
    has_iommu: bool = False
    memory_file: MemoryFile | None = None
    is_restored: bool = False
    qemu: str = "qemu-system-x86_64"
    host_ports: tuple[HostPort, ...] = ()
    extra_append: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadInputError(
                f"'{self.name}' is not a machine name: use letters, digits, '.' and '-', at most 63.",
                source="MachineSpec",
                key="name",
            )
        if isinstance(self.kernel, Firmware) and self.extra_append:
            raise BadInputError(
                f"{list(self.extra_append)} can't be added to a command line that the boot loader "
                "on the disk chooses; set 'kernel' to a DirectKernel.",
                source="MachineSpec",
                key="extra_append",
            )
        for key, value, least in (
            ("memory_mib", self.memory_mib, 128),
            ("cpus", self.cpus, 1),
            ("root_ports", self.root_ports, 0),
            ("root_port_window_mib", self.root_port_window_mib, 2),
            ("root_port_aperture_mib", self.root_port_aperture_mib, 0),
        ):
            if value < least:
                raise BadInputError(
                    f"{value} is too small; use {least} or more.", source="MachineSpec", key=key
                )

    @property
    def may_reboot(self) -> bool:
        """Return whether the machine continues when its guest reboots."""
        return isinstance(self.kernel, Firmware) or self.kernel.may_reboot

    @property
    def kernel_command_line(self) -> str:
        """Return the kernel's command line, or "" if a boot loader on the disk chooses it."""
        kernel = self.kernel
        if isinstance(kernel, Firmware):
            return ""
        added = () if kernel.is_verbatim else self.accelerator.kernel_append
        iommu = (_IOMMU_APPEND,) if self.has_iommu else ()
        return " ".join((*kernel.append, *added, *iommu, *self.extra_append))


def without_paths(spec: MachineSpec) -> MachineSpec:
    """Return the machine with neutral names and paths, and with its memory in a shared file.

    Two machines with equal results have the same devices, so each can load the other's saved state.
    """
    kernel = spec.kernel
    if isinstance(kernel, DirectKernel):
        kernel = replace(kernel, vmlinuz=Path("vmlinuz"), initrd=Path("initrd"))
    elif kernel.flash is not None:
        kernel = Firmware(flash=Flash(code=Path("code"), variables=Path("variables")))
    return replace(
        spec,
        name="checkpoint",
        disk=Path("disk"),
        seed=None,
        kernel=kernel,
        memory_file=MemoryFile(path=Path("ram"), is_private=False),
        is_restored=False,
        host_ports=(),
    )
