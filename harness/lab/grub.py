"""Which of its kernels a running machine's boot loader takes, once or from now on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.image.bootmenu import read_menu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.image.bootmenu import MenuEntry
    from harness.machine.guest import Guest

CONFIGURATION = "/boot/grub/grub.cfg"
#: Read after /etc/default/grub by Debian's and Ubuntu's grub-mkconfig; the last one counts.
DROP_IN = "/etc/default/grub.d/zz-harness.cfg"
_SAVED = "GRUB_DEFAULT=saved\n"
#: It looks at every disk and kernel, by some hundred small programs.
_MKCONFIG_S = 600.0


def menu_of(guest: Guest) -> Mapping[str, MenuEntry]:
    """Return what a machine's boot menu has, by kernel; raises HarnessError where there is none."""
    configuration = guest.read_text(CONFIGURATION)
    if configuration is None:
        raise HarnessError(
            f"Machine '{guest.name}' has no '{CONFIGURATION}', so that no kernel can be chosen; its "
            "image boots by something else than GRUB."
        )
    return read_menu(configuration)


def boot_once(guest: Guest, kernel: str) -> None:
    """Let the boot loader take another kernel at the next boot, and only then.

    Raises HarnessError that lists the kernels which the menu has.
    """
    guest.output_of("grub-reboot", _entry(guest, kernel).path)


def boot_always(guest: Guest, kernel: str) -> None:
    """Let the boot loader take this kernel at every boot to come, until another one is chosen.

    Menus take their default from the environment block only where they were made to, so this one
    is made anew, as a person does who sets `GRUB_DEFAULT=saved`. Raises HarnessError that lists
    the kernels which the menu has.
    """
    _entry(guest, kernel)
    guest.write_text(DROP_IN, _SAVED)
    guest.output_of("grub-mkconfig", "-o", CONFIGURATION, timeout_s=_MKCONFIG_S)
    # Its entries have other names now, where it was not grub-mkconfig that made it before.
    guest.output_of("grub-set-default", _entry(guest, kernel).path)


def _entry(guest: Guest, kernel: str) -> MenuEntry:
    entries = menu_of(guest)
    if kernel not in entries:
        raise HarnessError(
            f"The boot menu of machine '{guest.name}' has no kernel '{kernel}'; it has "
            f"{', '.join(sorted(entries)) or 'none'}."
        )
    return entries[kernel]
