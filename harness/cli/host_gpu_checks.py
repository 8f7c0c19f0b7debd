"""Checks for `harness doctor` whether virtual machines can use this host's GPUs."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.gpu.catalogue import load_catalogue
from harness.gpu.passthrough import VFIO_DRIVER
from harness.lab.gpu_sources import open_gpu_pool
from harness.lab.node_request import NodeRequest
from harness.machine.qemu.locked_memory import locked_mib
from harness.machine.requirement_check import RequirementCheck
from harness.settings import INVENTORY

if TYPE_CHECKING:
    from harness.gpu import GpuKind
    from harness.gpu.passthrough import HostGpu
    from harness.gpu.passthrough.pool import GpuPool
    from harness.settings import Settings

_SET_PARAMETER = "in GRUB_CMDLINE_LINUX of '/etc/default/grub', run `update-grub` and boot again"


def examine_host_gpus(settings: Settings, root: Path = Path("/")) -> list[RequirementCheck]:
    """Check the host, whose system files are below `root`, if the host has a GPU for tests.

    A missing requirement is a fault only if the host has a GPU inventory, because the inventory
    declares that the host's GPUs are for tests.
    """
    is_needed = settings.gpu_inventory is not None or INVENTORY.exists()
    try:
        catalogue = load_catalogue(*settings.gpu_models)
        pool = open_gpu_pool(settings, catalogue)
        gpus = [gpu for gpu in pool.survey() if _is_wanted(gpu, catalogue.kinds)]
    except HarnessError as error:
        checks = [_check("GPUs of this host", str(error), is_met=False)]
    else:
        checks = _checks(gpus, pool, root, is_needed=is_needed)
    return [replace(check, is_needed=is_needed) for check in checks]


def _checks(
    gpus: list[HostGpu], pool: GpuPool, root: Path, *, is_needed: bool
) -> list[RequirementCheck]:
    if gpus:
        has_groups = any(gpu.group is not None for gpu in gpus)
        return [
            _iommu(root, has_groups=has_groups),
            _vfio(root),
            _locked_memory(),
            _folder(pool),
            *(_gpu(gpu, pool) for gpu in gpus if has_groups),
        ]
    if not is_needed:
        return []
    found = "This host has an inventory of GPUs, but its PCI bus has no GPU of the vendors in the catalogue."
    remedy = "Look for the GPU with `lspci -nn`; if `lspci` does not list it, reboot the host."
    return [_check("GPUs of this host", found, remedy, is_met=False)]


def _is_wanted(gpu: HostGpu, kinds: frozenset[GpuKind]) -> bool:
    """Return whether tests could use the GPU; tests cannot use the display adapter of a laptop or a BMC."""
    if gpu.model is not None:
        return True
    function = gpu.function
    return any(
        (f"{function.vendor:04x}", f"{function.class_code >> 8:04x}")
        == (kind.vendor, kind.class_code)
        for kind in kinds
    )


def _iommu(root: Path, *, has_groups: bool) -> RequirementCheck:
    name = "IOMMU"
    if has_groups:
        return _check(name, "The IOMMU is on: the kernel has IOMMU groups.", is_met=True)
    vendor = _processor(root)
    parameters = _text(root / "proc/cmdline").split()
    if vendor == "GenuineIntel":
        table, firmware, parameter = "DMAR", "VT-d", "intel_iommu=on"
    elif vendor == "AuthenticAMD":
        table, firmware, parameter = "IVRS", "AMD-Vi (IOMMU)", "amd_iommu=on"
    else:
        remedy = f"Enable the IOMMU in the firmware, and remove `iommu=off` {_SET_PARAMETER}."
        return _check(name, "The kernel has no IOMMU groups.", remedy, is_met=False)
    off = [
        each for each in parameters if each in {"iommu=off", "amd_iommu=off", "intel_iommu=off"}
    ]
    if off:
        remedy = f"Replace `{off[0]}` by `{parameter} iommu=pt` {_SET_PARAMETER}."
    elif parameter in parameters:
        remedy = f"Enable {firmware} in the firmware; the kernel has `{parameter}` already."
    else:
        remedy = f"Add `{parameter} iommu=pt` {_SET_PARAMETER}."
    tables = root / "sys/firmware/acpi/tables"
    found = "The kernel has no IOMMU groups."
    if tables.is_dir() and not (tables / table).exists():
        found = f"The firmware reports no IOMMU (there is no ACPI table '{table}')."
        if parameter not in parameters:
            remedy = f"Enable {firmware} in the firmware. {remedy}"
    return _check(name, found, remedy, is_met=False)


def _vfio(root: Path) -> RequirementCheck:
    if (root / "sys/bus/pci/drivers" / VFIO_DRIVER).is_dir():
        return _check(VFIO_DRIVER, "The kernel module is loaded.", is_met=True)
    return _check(
        VFIO_DRIVER,
        "The kernel module is not loaded.",
        f"Run `modprobe {VFIO_DRIVER}`, and `echo {VFIO_DRIVER} > /etc/modules-load.d/"
        f"{VFIO_DRIVER}.conf` for the next boot.",
        is_met=False,
    )


def _locked_memory() -> RequirementCheck:
    """Check the limit of locked memory: VFIO locks all memory of a virtual machine that has a host GPU."""
    name = "locked memory"
    if os.geteuid() == 0:
        return _check(name, "There is no limit for root.", is_met=True)
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return _check(name, "There is no limit.", is_met=True)
    needed_mib = locked_mib(NodeRequest.memory_mib)
    found = f"{limit >> 20} MiB may be locked; a machine with a GPU needs {needed_mib} MiB."
    if limit >> 20 >= needed_mib:
        return _check(name, found, is_met=True)
    return _check(
        name,
        found,
        "Write `@GROUP - memlock unlimited` into '/etc/security/limits.d/gpu-node-harness.conf' and "
        "log in again (`ulimit -l` shows it); a systemd service needs `LimitMEMLOCK=infinity`.",
        is_met=False,
    )


def _folder(pool: GpuPool) -> RequirementCheck:
    name = "leases of GPUs"
    if pool.folder.exists():
        # The survey of the GPUs has read the folder, so the folder can be used.
        return _check(name, f"The leases are in '{pool.folder}'.", is_met=True)
    if os.geteuid() == 0:
        found = f"'{pool.folder}' is created when it is first used, for root alone."
        return _check(name, found, is_met=True)
    return _check(
        name,
        f"The folder '{pool.folder}' does not exist.",
        f"As root, run `install -d -m 2770 -g GROUP {pool.folder}`, where you are a member of GROUP; "
        "a line in '/etc/tmpfiles.d' makes the folder at each boot (docs/gpu-lab.md).",
        is_met=False,
    )


def _gpu(gpu: HostGpu, pool: GpuPool) -> RequirementCheck:
    is_leased = any(gpu.address in lease.taken for lease in pool.leases())
    return _check(
        f"GPU {gpu.address}", gpu.verdict.reason, is_met=gpu.verdict.is_usable or is_leased
    )


def _check(
    requirement: str, found: str, remedy: str | None = None, *, is_met: bool
) -> RequirementCheck:
    return RequirementCheck(requirement=requirement, is_met=is_met, found=found, remedy=remedy)


def _processor(root: Path) -> str | None:
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "vendor_id":
            return value.strip()
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
