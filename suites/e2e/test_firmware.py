"""Firmware finds the boot loader on the disk; QEMU gets no kernel."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from harness.machine.description.spec import Firmware, Flash
from harness.machine.uefi_firmware import find_uefi_firmware
from harness.plugin.select import requirements
from suites.e2e.boot_sector import BOOT_MESSAGE, firmware_machine, patience

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab import Lab
    from harness.settings import Settings


def test_seabios_boots_the_disk(lab: Lab, tmp_path: Path) -> None:
    with firmware_machine(lab, tmp_path, Firmware()) as machine:
        machine.console.wait_for(
            BOOT_MESSAGE.decode().strip(), patience(lab), what="what the boot loader says"
        )


@pytest.fixture
def flash(settings: Settings, tmp_path: Path) -> Flash:
    """Return OVMF with a separate variable store for the test."""
    with requirements(settings):
        firmware = find_uefi_firmware()
    variables = shutil.copyfile(firmware.variables, tmp_path / "variables.fd")
    return Flash(code=firmware.code, variables=variables)


def test_ovmf_tries_to_boot_the_disk_first(lab: Lab, tmp_path: Path, flash: Flash) -> None:
    """The disk has no EFI boot loader; OVMF reports the disk as its first attempt and continues."""
    with firmware_machine(lab, tmp_path, Firmware(flash=flash)) as machine:
        machine.console.wait_for(
            r"BdsDxe: failed to load Boot0\d+ .*UEFI Misc Device",
            patience(lab),
            what="that OVMF has tried the disk",
        )
