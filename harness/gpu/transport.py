"""Chooses the transport of an emulated GPU by QEMU's version and devices."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from typing_extensions import override

from harness.errors import HarnessError, RequirementError

if TYPE_CHECKING:
    from harness.provisioning.command import Runner

AcceleratorName: TypeAlias = Literal["kvm", "tcg"]

_DEVICE_NAME = re.compile(r'^name "([^"]+)"', re.MULTILINE)
_VERSION = re.compile(r"version (\d+)\.(\d+)(?:\.(\d+))?")
_QUERY_S = 20.0
_REMEDY = (
    "use QEMU 6.0 to 8.1 (Debian 12 has 7.2, Ubuntu 22.04 has 6.2), QEMU 10.1.1 or newer "
    '(`--qemu="$(harness qemu sid)"` takes the QEMU of Debian sid), or KVM with QEMU 6.0 to 10.0'
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


#: The first safe version, and the first later version that is unsafe. Under TCG, unsafe versions
#: die of SIGSEGV when firmware routes the interrupt pin.
_MPQEMU_SAFE: dict[AcceleratorName, tuple[QemuVersion, QemuVersion]] = {
    "tcg": (QemuVersion(6, 0), QemuVersion(8, 2)),
    "kvm": (QemuVersion(6, 0), QemuVersion(10, 1)),
}
#: QEMU has had the device since 10.1.0, but the harness was never tested with that version.
_VFIO_USER_SAFE_FROM = QemuVersion(10, 1, 1)


def find_transport(qemu: str, accelerator: AcceleratorName, runner: Runner) -> Transport:
    """Query the program `qemu`, and return the transport that is safe with it.

    No machine is started: some versions have the device but crash when it is used. Raises
    RequirementError, which names the versions that work.
    """
    version = runner.run([qemu, "--version"], timeout_s=_QUERY_S)
    devices = runner.run([qemu, "-device", "help"], timeout_s=_QUERY_S)
    return choose_transport(
        device_help=devices.stdout + devices.stderr,
        version=parse_qemu_version(version.stdout),
        accelerator=accelerator,
    )


def parse_qemu_version(text: str) -> QemuVersion:
    """Return the version in the output of `qemu-system-x86_64 --version`.

    Raises HarnessError if the output contains no version.
    """
    found = _VERSION.search(text)
    if found is None:
        raise HarnessError(f"QEMU was expected to print its version, but printed {text[:200]!r}.")
    major, minor, micro = found.groups()
    return QemuVersion(int(major), int(minor), int(micro or 0))


def parse_device_names(device_help: str) -> frozenset[str]:
    """Return the devices that the output of `qemu-system-x86_64 -device help` lists."""
    return frozenset(_DEVICE_NAME.findall(device_help))


def choose_transport(
    *, device_help: str, version: QemuVersion, accelerator: AcceleratorName
) -> Transport:
    """Return the transport that is safe with this QEMU.

    QEMU must have the device, since builds differ, and its version must not crash when the device
    is used. Raises RequirementError, which names the versions that work.
    """
    devices = parse_device_names(device_help)
    refusals = {
        Transport.VFIO_USER: _vfio_user_refusal(version),
        Transport.MPQEMU: _mpqemu_refusal(version, accelerator),
    }
    for transport, refusal in refusals.items():
        if transport.value in devices and refusal is None:
            return transport
    reasons = " and ".join(
        f"its '{transport.value}' {refusal}"
        if transport.value in devices
        else f"it has no device '{transport.value}'"
        for transport, refusal in refusals.items()
    )
    raise RequirementError(
        f"QEMU {version} under {accelerator.upper()} cannot have an emulated GPU: {reasons}; "
        f"{_REMEDY}."
    )


def _vfio_user_refusal(version: QemuVersion) -> str | None:
    return "was never tried" if version < _VFIO_USER_SAFE_FROM else None


def _mpqemu_refusal(version: QemuVersion, accelerator: AcceleratorName) -> str | None:
    safe_from, safe_before = _MPQEMU_SAFE[accelerator]
    if safe_from <= version < safe_before:
        return None
    if version >= safe_before and accelerator == "tcg":
        return "crashes QEMU under TCG as soon as firmware sets up interrupts"
    return "was never tried"
