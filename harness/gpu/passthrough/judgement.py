"""Decides from the facts of the host whether a run may take a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from harness.gpu.passthrough import VFIO_DRIVER, Verdict, VerdictKind
from harness.gpu.passthrough.device_users import vfio_file

if TYPE_CHECKING:
    from harness.gpu.passthrough import HostFunction, IommuGroup
    from harness.gpu.passthrough.device_users import DeviceUsers
    from harness.gpu.passthrough.host_use import HostUse

Finding: TypeAlias = "tuple[VerdictKind, str]"

_STORAGE = 0x01
_NETWORK = 0x02
_USB = 0x0C03
#: If one of these attributes can't be read, the verdict is unknown. All other attributes are only
#: shown to people.
_DECISIVE = frozenset(
    {
        *("vendor", "device", "class", "config", "driver", "iommu_group", "boot_vga"),
        *("reset_method", "physfn", "mdev_supported_types", "driver_override"),
    }
)


def judge(
    function: HostFunction,
    group: IommuGroup | None,
    host_use: HostUse,
    users: DeviceUsers,
    *,
    has_iommu: bool,
) -> Verdict:
    """Return the verdict on taking the GPU `function`, with all reasons against taking it.

    If a GPU is on vfio-pci, its verdict does not depend on whether the open files of all processes
    are known: the holder of the lease later opens the group's file, and can't open the file while
    another process has it open.
    """
    functions = (function,) if group is None else group.endpoints
    findings = [
        *_host_needs(functions, host_use),
        *_grouping(function, group, has_iommu=has_iommu),
        *_sharing(function),
        *_state(function),
        *(finding for each in functions for finding in _unread(each)),
        *_open_files(functions, group, users),
    ]
    number = "" if group is None else f" of group {group.number}"
    count = len(functions)
    usable = (
        f"All {count} functions{number} can be passed to a machine."
        if count > 1
        else f"The single function{number} can be passed to a machine."
    )
    return Verdict.of(findings, usable)


def _refused(reason: str) -> Finding:
    return VerdictKind.REFUSED, reason


def _unknown(reason: str) -> Finding:
    return VerdictKind.UNKNOWN, reason


def _host_needs(functions: tuple[HostFunction, ...], host_use: HostUse) -> list[Finding]:
    findings = [
        _refused(f"{each.address}: {reason}")
        for each in functions
        for reason in host_use.reasons.get(each.address, ())
    ]
    findings += [
        _refused(
            f"{each.address}: The firmware chose this function for the console (boot_vga is 1)."
        )
        for each in functions
        if each.is_boot_vga
    ]
    for each in functions:
        is_usb = each.class_code >> 8 == _USB
        kind = each.class_code >> 16
        unknown = [
            *(host_use.unknown_disks if is_usb or kind == _STORAGE else ()),
            *(host_use.unknown_network if is_usb or kind == _NETWORK else ()),
        ]
        findings += [_unknown(f"The host may need {each.address}: {reason}") for reason in unknown]
    return findings


def _grouping(
    function: HostFunction, group: IommuGroup | None, *, has_iommu: bool
) -> list[Finding]:
    if group is None:
        if "iommu_group" in function.unreadable:
            return []
        if has_iommu:
            return [
                _refused("The GPU is in no IOMMU group, although other functions are in groups.")
            ]
        return [
            _refused(
                "The host has no IOMMU groups: its IOMMU is off; `harness doctor` says how to "
                "switch it on."
            )
        ]
    # Other functions in the GPU's own slot, such as audio and USB, are parts of the card.
    others = [
        each
        for each in group.endpoints
        if each.address != function.address and (each.slot != function.slot or each.is_gpu)
    ]
    if not others:
        return []
    return [
        _refused(
            f"The GPU shares IOMMU group {group.number} with {', '.join(map(str, others))}; put the card "
            "into another slot, or enable ACS in the firmware."
        )
    ]


def _sharing(function: HostFunction) -> list[Finding]:
    findings = []
    if function.physical_function is not None:
        findings.append(
            _refused(
                f"The GPU is an SR-IOV virtual function of {function.physical_function}; the harness "
                "uses only whole GPUs."
            )
        )
    if function.virtual_functions:
        findings.append(
            _refused(
                f"The GPU has {len(function.virtual_functions)} SR-IOV virtual functions; disable them "
                f"by `echo 0 > /sys/bus/pci/devices/{function.address}/sriov_numvfs`."
            )
        )
    if function.mdevs:
        mdevs = ", ".join(function.mdevs)
        findings.append(
            _refused(f"The GPU has mediated devices (vGPUs): {mdevs}; remove them first.")
        )
    return findings


def _state(function: HostFunction) -> list[Finding]:
    findings = []
    if not function.is_answering:
        findings.append(
            _refused(
                "The GPU does not answer: its configuration space shows no ids, or the GPU stays in "
                f"D3cold (power state {function.power_state or 'unknown'})."
            )
        )
    if not function.reset_methods and "reset_method" not in function.unreadable:
        findings.append(
            _refused(
                "The kernel has no method to reset the GPU ('reset_method' is empty or absent), so one "
                "test would find the state that another test left."
            )
        )
    return findings


def _unread(function: HostFunction) -> list[Finding]:
    names = [name for name in function.unreadable if name in _DECISIVE]
    if not names:
        return []
    return [
        _unknown(f"{', '.join(names)} can't be read in '/sys/bus/pci/devices/{function.address}'.")
    ]


def _open_files(
    functions: tuple[HostFunction, ...], group: IommuGroup | None, users: DeviceUsers
) -> list[Finding]:
    opened = [open_file for each in functions for open_file in users.of_function(each.address)]
    if group is not None and (processes := users.of_file(vfio_file(group.number))):
        opened.append((vfio_file(group.number), processes))
    findings = [
        (
            VerdictKind.BUSY,
            f"'{file}' is open in {', '.join(processes)}; end every process that has this file open.",
        )
        for file, processes in opened
    ]
    # The GPU of a card need not be function 0.
    gpu = next((each for each in functions if each.is_gpu), functions[0])
    if not users.is_complete and gpu.driver not in {None, VFIO_DRIVER}:
        findings.append(
            _unknown(
                "It is unknown whether a process of another user has the GPU open, and driver "
                f"'{gpu.driver}' can't be unbound from a GPU in use; run as root, or bind the GPU to "
                "vfio-pci at boot."
            )
        )
    if gpu.driver == "nvidia" and not users.has_nvidia_file(gpu.address):
        findings += [
            _unknown(
                f"'{file}' is open in {', '.join(processes)}; it is unknown to which GPU this file belongs."
            )
            for file, processes in users.unassigned_nvidia_files()
        ]
    return findings
