"""Installs packages with entry points for a test: a module and its metadata in a folder of sys.path."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.expect import gpus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from harness.entry_points import Group


@dataclass(frozen=True)
class Site:
    """A folder of installed packages, which the test's interpreter sees."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def install(self, name: str, entries: Mapping[Group, str], code: str = "") -> Path:
        """Install the distribution `name` 1.2 with a package `name_plugin`, and return its folder.

        `entries` are lines `NAME = MODULE:OBJECT` by group; `code` is the content of the package.
        """
        package = self.folder / name / f"{name}_plugin"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(code)
        metadata = self.folder / name / f"{name}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        groups = (f"[{group.value}]\n{lines}\n" for group, lines in entries.items())
        (metadata / "entry_points.txt").write_text("".join(groups))
        self.monkeypatch.syspath_prepend(str(self.folder / name))
        self.monkeypatch.delitem(sys.modules, package.name, raising=False)
        importlib.invalidate_caches()
        gpus.known_kinds.cache_clear()
        return package

    def close(self) -> None:
        """Clear the harness's cache of installed packages."""
        for name in [name for name in sys.modules if name.endswith("_plugin")]:
            del sys.modules[name]
        gpus.known_kinds.cache_clear()
