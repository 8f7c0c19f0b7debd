"""A distribution's image boots as it is: firmware, its own boot loader, its own cloud-init."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cloudinit import CloudInitStatus
from harness.lab.grub import boot_once

if TYPE_CHECKING:
    from harness.image import Image, StockImage
    from harness.lab import Lab
    from harness.lab.machine import LabMachine

_CLOUD_INIT_KVM_S = 60.0
_REBOOT_KVM_S = 60.0
_DISK_GIB = 10


def _root_bytes(machine: LabMachine) -> int:
    return int(machine.guest.output_of("df", "--output=size", "-B1", "/").splitlines()[-1])


def test_seabios_boots_it_cloud_init_grows_it_and_another_kernel_boots_once(
    lab: Lab, fetched: StockImage, stock_like: Image
) -> None:
    newest, other = stock_like.newest_kernel.version, stock_like.other_kernel.version
    with lab.boot_stock(fetched, disk_gib=_DISK_GIB) as machine:
        result = machine.guest.wait_for_cloud_init_result(machine.deadline(_CLOUD_INIT_KVM_S))

        assert result.errors == ()
        assert machine.guest.cloud_init_report().status is CloudInitStatus.DONE
        assert result.datasource.startswith("DataSourceNoCloud")
        assert machine.guest.output_of("uname", "-r") == newest
        assert machine.guest.output_of("hostname") == "stock"
        assert fetched.virtual_bytes < 5 << 30 < 9 << 30 < _root_bytes(machine)
        assert machine.guest.output_of("systemctl", "is-active", "serial-getty@ttyS0") == "active"

        boot_once(machine.guest, other)
        machine.reboot(machine.deadline(_REBOOT_KVM_S))

        assert machine.guest.output_of("uname", "-r") == other
        assert "next_entry=\n" in machine.guest.output_of("grub-editenv", "list") + "\n"


def test_ovmf_boots_it(lab: Lab, fetched: StockImage, stock_like: Image) -> None:
    with lab.boot_stock(fetched, firmware="uefi") as machine:
        assert machine.guest.output_of("uname", "-r") == stock_like.newest_kernel.version
        assert machine.guest.run("test", "-d", "/sys/firmware/efi").ok, "It booted by BIOS."
