"""Writes the pytest fixture that applies the settings of a spec's project to the translated spec."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.shell.spec.project import Project

MOCKS = "/opt/spec-mocks"
"""The directory in the root for mocks that are scripts; it is the first directory on PATH."""
_ERREXIT = re.compile(r"^\s*set\s+(?:-\w*e|-o\s+errexit\b)", re.MULTILINE)
_HOOKS_AFTER = re.compile(r"^[^#\n]*\bafter_(?:each|all)\b", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class MigratedProject:
    """The settings of a spec's project.

    `folder` is the working directory of the spec's code, relative to pytest's root directory.
    """

    spec: str
    options: Mapping[str, object] = field(default_factory=dict)
    folder: str = ""
    helper_text: str = ""
    warns: bool = True

    @classmethod
    def of(cls, project: Project, spec: Path, root: Path) -> MigratedProject:
        options = project.options
        folder = _relative(project.exec_dir(spec), root)
        helpers = project.root / options.helper_dir
        given = {
            "project": _relative(project.root, root),
            "exec_dir": _relative(project.exec_dir(spec), project.root),
            "helper_dir": "" if options.helper_dir == "spec" else options.helper_dir,
            "requires": options.requires,
            "load_path": options.load_path,
            "env": dict(options.env),
            "env_from": options.env_from,
            "path": options.path,
            "only_path": options.sandbox_path if options.mocks_only else None,
        }
        folders = [helpers, *(project.root / part for part in options.load_path)]
        found = [
            next((f / f"{n}.sh" for f in folders if (f / f"{n}.sh").is_file()), None)
            for n in options.requires
        ]
        return cls(
            spec=project.relative(spec),
            options={k: v for k, v in given.items() if v or (k == "only_path" and v is not None)},
            folder=folder,
            helper_text="\n".join(f.read_text(errors="surrogateescape") for f in found if f),
            warns=options.warning_as_failure,
        )

    @property
    def has_errexit(self) -> bool:
        """Whether the project's helper modules set errexit, which then stays set in the evaluations of `When run`."""
        return bool(_ERREXIT.search(self.helper_text))

    @property
    def has_hooks_after(self) -> bool:
        """Whether the helper modules add hooks that run after an example."""
        return bool(_HOOKS_AFTER.search(self.helper_text))

    def fixture(self) -> str:
        """Return the code of the fixture that applies the project's settings to the tests of a module."""
        arguments = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return (
            "@pytest.fixture(autouse=True)\n"
            "def surroundings(shell: Shell) -> None:\n"
            '    """Set up the shell as the spec\'s project does."""\n'
            f"    give_surroundings(shell, spec={self.spec!r}{arguments})"
        )


def _relative(path: Path, root: Path) -> str:
    """Return a path relative to `root`: '' for `root` itself, and an absolute path for a path outside of `root`."""
    if not path.is_relative_to(root):
        return str(path)
    return "" if path == root else str(path.relative_to(root))
