"""A disk whose boot sector prints one line, and machines whose firmware boots this disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.machine.description.spec import Firmware, MachineSpec
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.lab import Lab
    from harness.machine import Machine

BOOT_MESSAGE = b"the disk's own boot loader runs\n"
#: Sixteen-bit code at 0x7c00 that writes the text behind the code to the first serial port, and
#: stops.
_BOOT_CODE = bytes.fromhex(
    "31c0 8ed8 fc be167c"  # xor ax,ax; mov ds,ax; cld; mov si,0x7c16
    "ac 84c0 7406 baf803 ee ebf5"  # next: lodsb; test al,al; jz end; mov dx,0x3f8; out; jmp next
    "f4 ebfd"  # end: hlt; jmp end
)
_SECTOR_END = b"\x55\xaa"
_DISK_BYTES = 4 << 20
_BOOT_S = 10.0


def boot_sector_disk(folder: Path) -> Path:
    """Make a qcow2 whose boot sector prints BOOT_MESSAGE on the serial port and stops."""
    raw, disk = folder / "disk.raw", folder / "disk.qcow2"
    sector = (_BOOT_CODE + BOOT_MESSAGE).ljust(510, b"\0") + _SECTOR_END
    raw.write_bytes(sector.ljust(_DISK_BYTES, b"\0"))
    LocalRunner().run(
        ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(disk)], timeout_s=60
    ).check("Making the disk")
    return disk


def firmware_machine(
    lab: Lab, folder: Path, firmware: Firmware
) -> AbstractContextManager[Machine]:
    spec = MachineSpec(
        name="firmware",
        accelerator=lab.accelerator.accelerator,
        kernel=firmware,
        disk=boot_sector_disk(folder),
        memory_mib=256,
        qemu=lab.settings.qemu,
    )
    return lab.driver.machine(spec, folder, agent_program=lab.agent_program.content)


def patience(lab: Lab) -> Deadline:
    return Deadline.after(_BOOT_S * lab.patience)
