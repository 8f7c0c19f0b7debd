"""Reads the kernels and their command lines from GRUB's menu."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENTRY = re.compile(
    r"^\s*(menuentry|submenu)\s.*?(?:--id|\$menuentry_id_option)\s+'([^']+)'.*\{\s*$"
)
_LINUX = re.compile(r"^\s*linux(?:efi|16)?\s+(\S*/vmlinuz-(\S+))(.*)$")
_RECOVERY = re.compile(r"\b(single|recovery)\b")


@dataclass(frozen=True, kw_only=True)
class MenuEntry:
    """An entry that boots a kernel. `path` is the entry's path in the menu, for grub-reboot.

    `command_line` is the kernel's command line. GRUB adds its first word, `BOOT_IMAGE=…`.
    """

    kernel: str
    path: str
    command_line: tuple[str, ...]


def read_menu(configuration: str) -> Mapping[str, MenuEntry]:
    """Return the first menu entry of each kernel, by kernel, in the order of the menu.

    Entries for recovery are left out. In command lines, variables such as Ubuntu's `$vt_handoff`
    become empty, since only a graphical menu sets them.
    """
    entries: dict[str, MenuEntry] = {}
    path: list[str] = []
    depths: list[int] = []
    depth = 0
    for line in configuration.splitlines():
        entry = _ENTRY.match(line)
        if entry is not None:
            path.append(entry[2])
            depths.append(depth)
        linux = _LINUX.match(line)
        if linux is not None and path and not _RECOVERY.search(linux[3]):
            file, kernel, words = linux.groups()
            # The newest kernel has two entries: one before the submenus, and one in a submenu;
            # grub-reboot accepts both.
            entries.setdefault(
                kernel,
                MenuEntry(
                    kernel=kernel,
                    path=">".join(path),
                    command_line=(f"BOOT_IMAGE={file}", *_words(words)),
                ),
            )
        depth += line.count("{") - line.count("}")
        while depths and depth <= depths[-1]:
            path.pop()
            depths.pop()
    return entries


def _words(text: str) -> tuple[str, ...]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return tuple(word for word in words if not word.startswith("$"))
