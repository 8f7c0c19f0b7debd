"""Selects the kernel that a running machine's boot loader boots, once or from now on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.image.formats.boot_menu import read_menu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.image.formats.boot_menu import MenuEntry
    from harness.machine.channels.guest import Guest

CONFIGURATION = "/boot/grub/grub.cfg"
#: grub-mkconfig of Debian and Ubuntu reads it after /etc/default/grub, so it overrides that file.
DROP_IN = "/etc/default/grub.d/zz-harness.cfg"
_SAVED = "GRUB_DEFAULT=saved\n"
#: grub-mkconfig starts some hundred small programs to examine every disk and kernel.
_MKCONFIG_S = 600.0


def menu_of(guest: Guest) -> Mapping[str, MenuEntry]:
    """Return the entries of a machine's boot menu by kernel; raises HarnessError without a menu."""
    configuration = guest.read_text(CONFIGURATION)
    if configuration is None:
        raise HarnessError(
            f"Machine '{guest.name}' has no '{CONFIGURATION}', so no kernel can be selected; its "
            "image does not boot by GRUB."
        )
    return read_menu(configuration)


def boot_once(guest: Guest, kernel: str) -> None:
    """Boot another kernel at the next boot, and only then.

    Raises HarnessError, which lists the kernels in the menu, if `kernel` is not there.
    """
    guest.output_of("grub-reboot", _entry(guest, kernel).path)


def boot_always(guest: Guest, kernel: str) -> None:
    """Boot this kernel from now on, until another one is selected.

    A menu reads its default from the environment block only with `GRUB_DEFAULT=saved`, so the
    function sets that and generates the menu again. Raises HarnessError, which lists the kernels
    in the menu, if `kernel` is not there.
    """
    _entry(guest, kernel)
    guest.write_text(DROP_IN, _SAVED)
    guest.output_of("grub-mkconfig", "-o", CONFIGURATION, timeout_s=_MKCONFIG_S)
    # The entries are renamed if another program had generated the previous menu.
    guest.output_of("grub-set-default", _entry(guest, kernel).path)


def _entry(guest: Guest, kernel: str) -> MenuEntry:
    entries = menu_of(guest)
    if kernel not in entries:
        raise HarnessError(
            f"The boot menu of machine '{guest.name}' has no kernel '{kernel}'; it has "
            f"{', '.join(sorted(entries)) or 'none'}."
        )
    return entries[kernel]
