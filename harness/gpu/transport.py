"""Which way an emulated GPU gets into a given QEMU: pure functions over what QEMU says of itself."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from typing_extensions import override

from harness.errors import HarnessError, RequirementError

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

AcceleratorName: TypeAlias = Literal["kvm", "tcg"]

_DEVICE_NAME = re.compile(r'^name "([^"]+)"', re.MULTILINE)
_VERSION = re.compile(r"version (\d+)\.(\d+)(?:\.(\d+))?")
_REMEDY = (
    "use QEMU 6.0 to 8.1 (Debian 12 has 7.2, Ubuntu 22.04 has 6.2), or KVM with QEMU 6.0 to 10.0"
)


class QemuVersion(NamedTuple):
    major: int
    minor: int
    micro: int = 0

    @override
    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.micro}"


class Transport(enum.Enum):
    """A protocol between QEMU and the device's process; the value is QEMU's device name."""

    MPQEMU = "x-pci-proxy-dev"
    VFIO_USER = "vfio-user-pci"


#: With later ones QEMU dies of SIGSEGV under TCG when firmware routes the interrupt pin.
_MPQEMU_SAFE_UNDER_TCG = (QemuVersion(6, 0), QemuVersion(8, 2))
_MPQEMU_SAFE_UNDER_KVM = (QemuVersion(6, 0), QemuVersion(10, 1))


def parse_qemu_version(text: str) -> QemuVersion:
    """Return the version in the output of `qemu-system-x86_64 --version`.

    Raises HarnessError where there is none.
    """
    found = _VERSION.search(text)
    if found is None:
        raise HarnessError(f"QEMU's version was expected, but it printed {text[:200]!r}.")
    major, minor, micro = found.groups()
    return QemuVersion(int(major), int(minor), int(micro or 0))


def parse_device_names(device_help: str) -> frozenset[str]:
    """Return the devices that the output of `qemu-system-x86_64 -device help` lists."""
    return frozenset(_DEVICE_NAME.findall(device_help))


def choose_transport(
    *, device_help: str, version: QemuVersion, accelerator: AcceleratorName
) -> Transport:
    """Return the transport by which this QEMU takes an emulated GPU without harm.

    Both count: what the binary has, since builds differ, and its version, since some that have
    the device crash on it. Raises RequirementError, whose one sentence says what would do.
    """
    devices = parse_device_names(device_help)
    safe_from, safe_before = (
        _MPQEMU_SAFE_UNDER_TCG if accelerator == "tcg" else _MPQEMU_SAFE_UNDER_KVM
    )
    if Transport.MPQEMU.value in devices and safe_from <= version < safe_before:
        return Transport.MPQEMU
    raise RequirementError(
        f"QEMU {version} under {accelerator.upper()} cannot take an emulated GPU: "
        f"{_reason(devices, version, safe_before)}; {_REMEDY}."
    )


def _reason(devices: AbstractSet[str], version: QemuVersion, safe_before: QemuVersion) -> str:
    mpqemu, vfio_user = Transport.MPQEMU.value, Transport.VFIO_USER.value
    if Transport.MPQEMU.value not in devices:
        reason = f"it has no device '{mpqemu}'"
    elif version >= _MPQEMU_SAFE_UNDER_KVM[1]:
        reason = f"its '{mpqemu}' crashes, or was never tried"
    elif version >= safe_before:
        reason = f"its '{mpqemu}' crashes QEMU under TCG as soon as firmware sets up interrupts"
    else:
        reason = f"its '{mpqemu}' was never tried"
    if vfio_user in devices:
        reason += f", and its '{vfio_user}' is not supported by the harness yet"
    return reason
