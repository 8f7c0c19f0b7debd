"""Kernels in a boot menu, in the forms that distributions write."""

from __future__ import annotations

from harness.image.formats.boot_menu import read_menu
from suites.unit.image.bootmenus import MENU


def paths(menu: str) -> dict[str, str]:
    return {kernel: entry.path for kernel, entry in read_menu(menu).items()}


def test_path_of_an_entry_in_a_submenu_contains_the_id_of_the_submenu() -> None:
    assert paths(MENU) == {
        "6.1.0-56-cloud-amd64": "gnulinux-simple-1234",
        "6.1.0-55-cloud-amd64": "gnulinux-advanced-1234>gnulinux-55-advanced-1234",
    }


def test_entry_id_that_is_given_by_the_id_option_is_read() -> None:
    menu = MENU.replace("$menuentry_id_option", "--id")

    assert read_menu(menu) == read_menu(MENU)


def test_command_line_is_read_without_variables_and_quotes() -> None:
    menu = MENU.replace("ro quiet", "ro 'console=ttyS0,115200 x' $vt_handoff")

    words = read_menu(menu)["6.1.0-56-cloud-amd64"].command_line

    assert words[2:] == ("ro", "console=ttyS0,115200 x")


def test_first_linux_line_of_an_entry_is_used() -> None:
    """Ubuntu's cloud images first try a boot without an initrd, unless the last such boot failed."""
    menu = """\
menuentry 'Ubuntu' --class ubuntu $menuentry_id_option 'gnulinux-simple-1' {
  if [ "${initrdfail}" = 1 ]; then
    linux /boot/vmlinuz-6.8.0-31-generic root=PARTUUID=1 ro console=tty1 console=ttyS0
    initrd /boot/initrd.img-6.8.0-31-generic
  else
    linux /boot/vmlinuz-6.8.0-31-generic root=PARTUUID=1 ro console=tty1 console=ttyS0 panic=-1
  fi
}
"""

    words = read_menu(menu)["6.8.0-31-generic"].command_line

    assert words[1:] == ("root=PARTUUID=1", "ro", "console=tty1", "console=ttyS0")


def test_menu_of_ubuntu_with_a_separate_boot_partition_is_read() -> None:
    """The menu is as grub-mkconfig of Ubuntu 24.04 writes it with the settings of cloud images."""
    menu = """\
menuentry 'Ubuntu' --class ubuntu --class os $menuentry_id_option 'gnulinux-simple-5e0d' {
	recordfail
	load_video
	gfxmode $linux_gfx_mode
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	search --no-floppy --fs-uuid --set=root 9c41
	linux	/vmlinuz-6.8.0-85-generic root=LABEL=cloudimg-rootfs ro  console=tty1 console=ttyS0
	initrd	/initrd.img-6.8.0-85-generic
}
submenu 'Advanced options for Ubuntu' $menuentry_id_option 'gnulinux-advanced-5e0d' {
	menuentry 'Ubuntu, with Linux 6.8.0-31-generic' $menuentry_id_option 'gnulinux-31-advanced-5e0d' {
		linux	/vmlinuz-6.8.0-31-generic root=LABEL=cloudimg-rootfs ro  console=tty1 $vt_handoff
	}
	menuentry 'Ubuntu, with Linux 6.8.0-31-generic (recovery mode)' $menuentry_id_option 'r' {
		linux	/vmlinuz-6.8.0-31-generic root=LABEL=cloudimg-rootfs ro recovery nomodeset
	}
}
"""

    entries = read_menu(menu)

    assert list(entries) == ["6.8.0-85-generic", "6.8.0-31-generic"]
    assert entries["6.8.0-31-generic"].path == "gnulinux-advanced-5e0d>gnulinux-31-advanced-5e0d"
    assert entries["6.8.0-31-generic"].command_line == (
        "BOOT_IMAGE=/vmlinuz-6.8.0-31-generic",
        "root=LABEL=cloudimg-rootfs",
        "ro",
        "console=tty1",
    )


def test_recovery_entries_are_left_out() -> None:
    """A kernel's only entry is left out too; an entry with the word `singleuser` is kept."""
    entry = "menuentry 'x' --id '{}' {{\n linux /boot/vmlinuz-{} root=1 {}\n}}\n"
    menu = "".join(
        entry.format(kernel, kernel, words)
        for kernel, words in (
            *(("1", "ro single"), ("2", "recovery nomodeset"), ("3", "dis_ucode_ldr recovery")),
            *(("4", "ro singleuser"), ("5", "ro")),
        )
    )

    assert list(read_menu(menu)) == ["4", "5"]


def test_entry_after_a_submenu_is_not_part_of_the_submenu() -> None:
    menu = (
        "submenu 'More' --id 'more' {\n menuentry 'a' --id 'a' {\n  linuxefi /vmlinuz-1 ro\n }}\n"
        "linux /vmlinuz-0 ro\nmenuentry 'b' --id 'b' {\n linux16 /vmlinuz-2 ro\n}\n"
    )

    assert paths(menu) == {"1": "more>a", "2": "b"}
