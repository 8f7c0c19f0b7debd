"""Reads unit files and drop-ins, and links units, as systemd does."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.shell.fakes.fake import Fake

#: The folders of unit files, by descending priority, each with the path that systemd prints for it.
_FOLDERS = {
    "/etc/systemd/system": "/etc/systemd/system",
    "/run/systemd/system": "/run/systemd/system",
    "/usr/lib/systemd/system": "/lib/systemd/system",
}
#: systemd.unit(5)
TYPES = (
    ".service", ".socket", ".target", ".timer", ".path", ".mount", ".automount", ".swap",
    ".slice", ".scope", ".device",
)  # fmt: skip
_FOLDER_OF = {"WantedBy": "wants", "RequiredBy": "requires"}


def settings(text: str, name: str) -> list[str]:
    """Return the values of a setting in a unit file; an empty value clears the values before it."""
    values: list[str] = []
    for value in re.findall(rf"^[ \t]*{name}[ \t]*=(.*)$", text, re.MULTILINE):
        values = [*values, value.strip(" \t")] if value.strip(" \t") else []
    return values


def link_folders(text: str) -> list[str]:
    """Return the folders in which `systemctl enable` links a unit, as the unit's `[Install]` section says."""
    return [
        f"{target}.{kind}"
        for name, kind in _FOLDER_OF.items()
        for value in settings(text, name)
        for target in value.split()
    ]


class UnitFiles:
    """The unit files in the throw-away root of a fake, without files of the host."""

    def __init__(self, fake: Fake) -> None:
        self._fake = fake

    def find(self, name: str) -> tuple[str, str] | None:
        """Return a unit file's folder and text.

        Return None if neither the code under test nor a fake wrote the file.
        """
        for folder, shown in _FOLDERS.items():
            text = self._fake.read_own_file(f"{folder}/{name}")
            if text is not None:
                return shown, text
        return None

    def names(self) -> list[str]:
        """Return the names of the unit files that the code under test or a fake wrote."""
        return [
            PurePosixPath(path).name
            for folder in _FOLDERS
            for path in self._fake.own_entries(folder)
            if PurePosixPath(path).suffix in TYPES
        ]

    def parts(self, name: str, folder: str, text: str) -> dict[str, str]:
        """Return the texts of a unit file and of its drop-ins, by path."""
        found = {f"{folder}/{name}": text}
        for path in self._drop_ins(name):
            found[path] = self._fake.read_own_file(path) or ""
        return found

    def _drop_ins(self, name: str) -> list[str]:
        """Return the paths of a unit's drop-ins, in the order in which systemd applies the drop-ins."""
        found: dict[str, str] = {}
        for folder in reversed(_FOLDERS):
            for path in self._fake.own_entries(f"{folder}/{name}.d"):
                if path.endswith(".conf"):
                    found[PurePosixPath(path).name] = path
        return [found[file] for file in sorted(found)]

    def link(self, path: str, target: str) -> list[str]:
        """Make a symbolic link; return systemctl's message about the link."""
        self._fake.files(path).link(path, target)
        return [f"Created symlink {path} → {target}.\n"]

    def unlink(self, path: str) -> list[str]:
        """Remove a symbolic link; return systemctl's message about the link."""
        self._fake.files(path).remove(path)
        return [f'Removed "{path}".\n']


def has_changed(loaded: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """Return whether systemd notices that a unit's files changed after systemd loaded the unit.

    Systemd does not notice a drop-in in a folder that had no drop-ins when the unit was loaded.
    """
    folders = {PurePosixPath(path).parent for path in list(loaded)[1:]}
    seen = {
        path: text
        for path, text in found.items()
        if path in loaded or PurePosixPath(path).parent in folders
    }
    return seen != loaded
