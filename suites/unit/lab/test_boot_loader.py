"""Which kernel the boot loader of a running machine starts at the next boot, or at each later boot."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from harness.lab.boot_loader import boot_always, boot_once
from harness.machine.channels.guest import Guest
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.unit.image.bootmenus import MENU


def _expect_menu(runner: ScriptedRunner, menu: str | None) -> None:
    read = '[ -e "$1" ] || exit 44; exec cat -- "$1"'
    runner.expect(
        ("sh", "-c", read, "read", "/boot/grub/grub.cfg"),
        stdout=menu or "",
        exit_code=44 if menu is None else 0,
    )


def _a_guest(runner: ScriptedRunner, *, menu: str | None) -> Guest:
    _expect_menu(runner, menu)
    return Guest("noble", runner)


def test_boot_once_calls_grub_reboot_with_the_menu_entry_of_the_kernel() -> None:
    runner = ScriptedRunner()
    guest = _a_guest(runner, menu=MENU)
    runner.expect(("grub-reboot", "gnulinux-advanced-1234>gnulinux-55-advanced-1234"))

    with runner:
        boot_once(guest, "6.1.0-55-cloud-amd64")


def test_error_for_a_kernel_that_the_menu_lacks_shows_the_kernels_of_the_menu() -> None:
    runner = ScriptedRunner()
    guest = _a_guest(runner, menu=MENU)

    with (
        runner,
        pytest.raises(
            HarnessError,
            match=r"6.1.0-54-cloud-amd64'; it has 6.1.0-55-cloud-amd64, 6.1.0-56-cloud-amd64",
        ),
    ):
        boot_once(guest, "6.1.0-54-cloud-amd64")


def test_image_without_grub_is_reported() -> None:
    runner = ScriptedRunner()
    guest = _a_guest(runner, menu=None)

    with runner, pytest.raises(HarnessError, match=r"has no '/boot/grub/grub\.cfg'"):
        boot_once(guest, "6.1.0-55-cloud-amd64")


def test_boot_always_regenerates_the_menu_and_sets_the_default_entry() -> None:
    """The new menu may have other entry ids, so the entry's id is read from the new menu."""
    runner = ScriptedRunner()
    guest = _a_guest(runner, menu=MENU)
    runner.expect(
        (
            "sh",
            "-c",
            'mkdir -p -- "$(dirname -- "$1")" && cat >"$1.part" && mv -- "$1.part" "$1"',
            "write",
            "/etc/default/grub.d/zz-harness.cfg",
        )
    )
    runner.expect(("grub-mkconfig", "-o", "/boot/grub/grub.cfg"))
    _expect_menu(runner, MENU.replace("1234", "5678"))
    runner.expect(("grub-set-default", "gnulinux-advanced-5678>gnulinux-55-advanced-5678"))

    with runner:
        boot_always(guest, "6.1.0-55-cloud-amd64")


def test_boot_always_changes_nothing_if_the_menu_has_no_entry_for_the_kernel() -> None:
    runner = ScriptedRunner()
    guest = _a_guest(runner, menu=MENU)

    with runner, pytest.raises(HarnessError, match="has no kernel"):
        boot_always(guest, "6.1.0-54-cloud-amd64")
