"""Kernels of an image that boots by GRUB: which there are, and which one boots next."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.machine.guest import Guest

CONFIGURATION = "/boot/grub/grub.cfg"

_ENTRY = re.compile(
    r"^\s*(menuentry|submenu)\s.*?(?:--id|\$menuentry_id_option)\s+'([^']+)'.*\{\s*$"
)
_LINUX = re.compile(r"^\s*linux(?:efi|16)?\s+\S*/vmlinuz-(\S+)(.*)$")


def kernel_entries(configuration: str) -> Mapping[str, str]:
    """Return the menu entries that boot kernels, by kernel; the first one of each counts.

    An entry of a submenu is named by the way to it, as grub-reboot takes it. Entries for
    recovery are left out.
    """
    entries: dict[str, str] = {}
    path: list[str] = []
    depths: list[int] = []
    depth = 0
    for line in configuration.splitlines():
        entry = _ENTRY.match(line)
        if entry is not None:
            path.append(entry[2])
            depths.append(depth)
        linux = _LINUX.match(line)
        if linux is not None and path and not re.search(r"\b(single|recovery)\b", linux[2]):
            # The entry outside the submenus boots the newest; grub-reboot takes either.
            entries.setdefault(linux[1], ">".join(path))
        depth += line.count("{") - line.count("}")
        while depths and depth <= depths[-1]:
            path.pop()
            depths.pop()
    return entries


def boot_once(guest: Guest, kernel: str) -> None:
    """Let the boot loader take another kernel at the next boot, and only then.

    Raises HarnessError that lists the kernels which the menu has.
    """
    configuration = guest.read_text(CONFIGURATION)
    if configuration is None:
        raise HarnessError(
            f"Machine '{guest.name}' has no '{CONFIGURATION}', so that no kernel can be chosen; its "
            "image boots by something else than GRUB."
        )
    entries = kernel_entries(configuration)
    if kernel not in entries:
        raise HarnessError(
            f"The boot menu of machine '{guest.name}' has no kernel '{kernel}'; it has "
            f"{', '.join(sorted(entries)) or 'none'}."
        )
    guest.output_of("grub-reboot", entries[kernel])
