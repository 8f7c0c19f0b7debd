"""The transport is chosen from the devices that QEMU has; a QEMU that would crash is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError, RequirementError
from harness.gpu.transport import (
    AcceleratorName,
    QemuVersion,
    Transport,
    choose_transport,
    find_transport,
    parse_qemu_version,
)
from harness.provisioning.command import CommandResult

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD = """\
Controller/Bridge/Hub devices:
name "pcie-root-port", bus PCI, desc "PCI Express Root Port"

Misc devices:
name "vfio-pci", bus PCI, desc "VFIO-based PCI device assignment"
"""
_MPQEMU = 'name "x-pci-proxy-dev", bus PCI\n'
_VFIO_USER = 'name "vfio-user-pci", bus PCI, desc "VFIO over socket PCI device assignment"\n'


def test_qemu_version_is_parsed() -> None:
    versions = {
        "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)": (7, 2, 22),
        "QEMU emulator version 11.1.3": (11, 1, 3),
        "QEMU emulator version 9.0": (9, 0, 0),
    }

    assert {text: parse_qemu_version(text) for text in versions} == versions


def test_qemu_output_without_a_version_raises_an_error() -> None:
    with pytest.raises(HarnessError, match="segmentation fault"):
        parse_qemu_version("segmentation fault")


def test_mpqemu_is_the_transport_for_qemu_versions_that_are_known_to_be_safe() -> None:
    safe: list[tuple[tuple[int, int, int], AcceleratorName]] = [
        ((6, 0, 0), "tcg"),
        ((7, 2, 22), "kvm"),
        ((8, 1, 5), "tcg"),
        ((10, 0, 13), "kvm"),
    ]

    chosen = {
        (version, accelerator): choose_transport(
            device_help=_HEAD + _MPQEMU, version=QemuVersion(*version), accelerator=accelerator
        )
        for version, accelerator in safe
    }

    assert chosen == dict.fromkeys(safe, Transport.MPQEMU)


@dataclass
class Qemu:
    """Plays a QEMU that lists its devices on one of its streams."""

    stream: str

    def run(self, argv: Sequence[str], **_: object) -> CommandResult:
        said = {
            ("--version",): "QEMU emulator version 7.2.22",
            ("-device", "help"): _HEAD + _MPQEMU,
        }
        text = said[tuple(argv[1:])]
        is_error = self.stream == "stderr" and "-device" in argv
        return CommandResult(
            argv=tuple(argv),
            exit_code=0,
            stdout="" if is_error else text,
            stderr=text if is_error else "",
        )


def test_transport_device_is_found_in_stdout_or_stderr_of_qemu() -> None:
    for stream in ("stdout", "stderr"):
        assert find_transport("/opt/qemu", "tcg", Qemu(stream)) is Transport.MPQEMU


def test_vfio_user_is_the_transport_for_qemu_versions_that_are_known_to_be_safe() -> None:
    safe: list[tuple[tuple[int, int, int], AcceleratorName]] = [
        ((10, 1, 1), "kvm"),
        ((11, 1, 3), "tcg"),
    ]
    for version, accelerator in safe:
        chosen = choose_transport(
            device_help=_HEAD + _MPQEMU + _VFIO_USER,
            version=QemuVersion(*version),
            accelerator=accelerator,
        )

        assert chosen is Transport.VFIO_USER


def test_error_for_a_qemu_without_a_safe_transport_has_the_reason_and_usable_versions() -> None:
    unsafe: list[tuple[str, tuple[int, int, int], AcceleratorName, str]] = [
        (_MPQEMU, (8, 2, 0), "tcg", "'x-pci-proxy-dev' crashes QEMU under TCG"),
        (_MPQEMU, (10, 0, 13), "tcg", "no device 'vfio-user-pci' and its .* crashes"),
        (_MPQEMU + _VFIO_USER, (10, 1, 0), "tcg", "its 'vfio-user-pci' was never tried and"),
        (_MPQEMU + _VFIO_USER, (10, 1, 0), "kvm", "'vfio-user-pci' was never tried"),
        (_MPQEMU, (10, 1, 0), "kvm", "'x-pci-proxy-dev' was never tried"),
        ("", (7, 2, 22), "tcg", "no device 'x-pci-proxy-dev'"),
        ("", (11, 1, 3), "tcg", "no device 'vfio-user-pci' and it has no device"),
        (_MPQEMU, (5, 2, 0), "kvm", "never tried"),
    ]
    for devices, version, accelerator, reason in unsafe:
        qemu = QemuVersion(*version)

        with pytest.raises(RequirementError, match=reason) as refusal:
            choose_transport(device_help=_HEAD + devices, version=qemu, accelerator=accelerator)

        assert str(refusal.value).startswith(f"QEMU {qemu} under {accelerator.upper()} ")
        assert "use QEMU 6.0 to 8.1" in str(refusal.value)
        assert "QEMU 10.1.1 or newer" in str(refusal.value)
        assert str(refusal.value).count(". ") == 0
