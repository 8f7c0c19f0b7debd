"""Firmware finds what boots on the disk, with no kernel handed to QEMU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.machine.spec import Firmware, Flash, MachineSpec
from harness.plugin.select import requirements
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from harness.lab import Lab
    from harness.machine import Machine
    from harness.settings import Settings

_SAYS = b"the disk's own boot loader runs\n"
#: Sixteen-bit code at 0x7c00 that writes what follows it to the first serial port, and stops.
_BOOT_CODE = bytes.fromhex(
    "31c0 8ed8 fc be167c"  # xor ax,ax; mov ds,ax; cld; mov si,0x7c16
    "ac 84c0 7406 baf803 ee ebf5"  # next: lodsb; test al,al; jz end; mov dx,0x3f8; out; jmp next
    "f4 ebfd"  # end: hlt; jmp end
)
_SECTOR_END = b"\x55\xaa"
_DISK_BYTES = 4 << 20
_OVMF = Path("/usr/share/OVMF")
_BOOT_S = 10.0


def a_disk(folder: Path) -> Path:
    """Make a qcow2 whose first sector is a boot loader that only says so."""
    raw, disk = folder / "disk.raw", folder / "disk.qcow2"
    sector = (_BOOT_CODE + _SAYS).ljust(510, b"\0") + _SECTOR_END
    raw.write_bytes(sector.ljust(_DISK_BYTES, b"\0"))
    LocalRunner().run(
        ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(disk)], timeout_s=60
    ).check("Making the disk")
    return disk


def a_machine(lab: Lab, folder: Path, firmware: Firmware) -> AbstractContextManager[Machine]:
    spec = MachineSpec(
        name="firmware",
        accelerator=lab.accelerator.accelerator,
        kernel=firmware,
        disk=a_disk(folder),
        memory_mib=256,
        qemu=lab.settings.qemu,
    )
    return lab.driver.machine(spec, folder, agent_program=lab.agent_program.content)


def patience(lab: Lab) -> Deadline:
    return Deadline.after(_BOOT_S * lab.accelerator.accelerator.patience)


def test_seabios_boots_the_disk(lab: Lab, tmp_path: Path) -> None:
    with a_machine(lab, tmp_path, Firmware()) as machine:
        machine.console.wait_for(
            _SAYS.decode().strip(), patience(lab), what="what the boot loader says"
        )


@pytest.fixture
def flash(settings: Settings, tmp_path: Path) -> Flash:
    """Return OVMF with variables of the test's own."""
    code, variables = _OVMF / "OVMF_CODE_4M.fd", _OVMF / "OVMF_VARS_4M.fd"
    with requirements(settings):
        if not code.exists() or not variables.exists():
            raise RequirementError(
                f"There is no OVMF in '{_OVMF}'; install it with 'apt-get install "
                "--no-install-recommends ovmf', or run `./dev setup`."
            )
    return Flash(code=code, variables=shutil.copyfile(variables, tmp_path / "variables.fd"))


def test_ovmf_looks_at_the_disk_first(lab: Lab, tmp_path: Path, flash: Flash) -> None:
    """The disk has no EFI boot loader; OVMF names it as what it tried first, and goes on."""
    with a_machine(lab, tmp_path, Firmware(flash=flash)) as machine:
        machine.console.wait_for(
            r"BdsDxe: failed to load Boot0\d+ .*UEFI Misc Device",
            patience(lab),
            what="that OVMF has tried the disk",
        )
