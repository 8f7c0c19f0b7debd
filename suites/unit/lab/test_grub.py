"""Kernels of a boot menu, in the forms that distributions write."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from harness.lab.grub import boot_once, kernel_entries
from harness.machine.guest import Guest
from harness.shell.mocks import ScriptedRunner

#: As grub-mkconfig 2.06 writes it: functions, a plain entry, a submenu, entries for recovery.
MENU = """\
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
fi
function load_video {
  insmod all_video
}
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-1234' {
  load_video
  if [ x$feature_platform_search_hint = xy ]; then
  search --no-floppy --fs-uuid --set=root  1234
  fi
  linux  /boot/vmlinuz-6.1.0-56-cloud-amd64 root=UUID=1234 ro quiet
  initrd  /boot/initrd.img-6.1.0-56-cloud-amd64
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-1234' {
  menuentry 'Debian, with Linux 6.1.0-56' --class debian $menuentry_id_option 'gnulinux-56-advanced-1234' {
  linux  /boot/vmlinuz-6.1.0-56-cloud-amd64 root=UUID=1234 ro quiet
  }
  menuentry 'Debian, with Linux 6.1.0-55 (recovery mode)' $menuentry_id_option 'gnulinux-55-recovery-1234' {
  linux  /boot/vmlinuz-6.1.0-55-cloud-amd64 root=UUID=1234 ro single
  }
  menuentry 'Debian, with Linux 6.1.0-55' --class debian $menuentry_id_option 'gnulinux-55-advanced-1234' {
  linux  /boot/vmlinuz-6.1.0-55-cloud-amd64 root=UUID=1234 ro quiet
  }
}
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {
  fwsetup
}
"""


def test_entry_of_a_submenu_is_named_by_the_way_to_it() -> None:
    assert kernel_entries(MENU) == {
        "6.1.0-56-cloud-amd64": "gnulinux-simple-1234",
        "6.1.0-55-cloud-amd64": "gnulinux-advanced-1234>gnulinux-55-advanced-1234",
    }


def test_separate_boot_partition_leaves_out_the_folder() -> None:
    menu = MENU.replace("/boot/vmlinuz", "/vmlinuz")

    assert kernel_entries(menu) == kernel_entries(MENU)


def test_ids_may_be_given_as_options() -> None:
    menu = MENU.replace("$menuentry_id_option", "--id")

    assert kernel_entries(menu) == kernel_entries(MENU)


def _a_guest(runner: ScriptedRunner, *, menu: str | None) -> Guest:
    read = '[ -e "$1" ] || exit 44; exec cat -- "$1"'
    runner.expect(
        ("sh", "-c", read, "read", "/boot/grub/grub.cfg"),
        stdout=menu or "",
        exit_code=44 if menu is None else 0,
    )
    return Guest("stock", runner)


def test_kernel_is_booted_once_by_its_entry() -> None:
    runner = ScriptedRunner()
    guest = _a_guest(runner, menu=MENU)
    runner.expect(("grub-reboot", "gnulinux-advanced-1234>gnulinux-55-advanced-1234"))

    with runner:
        boot_once(guest, "6.1.0-55-cloud-amd64")


def test_kernel_that_the_menu_lacks_is_refused_with_those_that_it_has() -> None:
    runner = ScriptedRunner()
    guest = _a_guest(runner, menu=MENU)

    with (
        runner,
        pytest.raises(HarnessError) as refusal,
    ):
        boot_once(guest, "6.1.0-54-cloud-amd64")

    assert str(refusal.value) == (
        "The boot menu of machine 'stock' has no kernel '6.1.0-54-cloud-amd64'; it has "
        "6.1.0-55-cloud-amd64, 6.1.0-56-cloud-amd64."
    )


def test_image_without_grub_is_told_apart() -> None:
    runner = ScriptedRunner()
    guest = _a_guest(runner, menu=None)

    with runner, pytest.raises(HarnessError, match=r"has no '/boot/grub/grub\.cfg'"):
        boot_once(guest, "6.1.0-55-cloud-amd64")
