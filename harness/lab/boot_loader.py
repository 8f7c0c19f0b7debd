"""Selects the kernel that a machine's boot loader starts, at the next boot or at all later boots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.image.formats.boot_menu import read_menu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.image.formats.boot_menu import MenuEntry
    from harness.machine.channels.guest import Guest

CONFIGURATION = "/boot/grub/grub.cfg"
#: grub-mkconfig of Debian and Ubuntu reads this file after /etc/default/grub, so settings in this
#: file override settings there.
DROP_IN = "/etc/default/grub.d/zz-harness.cfg"
_SAVED = "GRUB_DEFAULT=saved\n"
#: A long time limit: grub-mkconfig starts hundreds of programs to examine every disk and kernel.
_MKCONFIG_S = 600.0


def menu_of(guest: Guest) -> Mapping[str, MenuEntry]:
    """Return the entries of a machine's boot menu by kernel.

    Raises HarnessError if the machine has no menu.
    """
    configuration = guest.read_text(CONFIGURATION)
    if configuration is None:
        raise HarnessError(
            f"Machine '{guest.name}' has no '{CONFIGURATION}', so no kernel can be selected; its "
            "image does not boot with GRUB."
        )
    return read_menu(configuration)


def boot_once(guest: Guest, kernel: str) -> None:
    """Select the kernel of the next boot only.

    Raises HarnessError if the menu has no such kernel. The message lists the kernels in the menu.
    """
    guest.output_of("grub-reboot", _entry(guest, kernel).path)


def boot_always(guest: Guest, kernel: str) -> None:
    """Select the kernel of all later boots, until another kernel is selected.

    GRUB reads the default entry from its environment block only with `GRUB_DEFAULT=saved`, so the
    function sets that option and generates the menu again. Raises HarnessError if the menu has no
    such kernel. The message lists the kernels in the menu.
    """
    _entry(guest, kernel)
    guest.write_text(DROP_IN, _SAVED)
    guest.output_of("grub-mkconfig", "-o", CONFIGURATION, timeout_s=_MKCONFIG_S)
    # The entry is looked up in the new menu, since another program may have made the old menu,
    # with other names.
    guest.output_of("grub-set-default", _entry(guest, kernel).path)


def _entry(guest: Guest, kernel: str) -> MenuEntry:
    entries = menu_of(guest)
    if kernel not in entries:
        raise HarnessError(
            f"The boot menu of machine '{guest.name}' has no kernel '{kernel}'; it has "
            f"{', '.join(sorted(entries)) or 'none'}."
        )
    return entries[kernel]
