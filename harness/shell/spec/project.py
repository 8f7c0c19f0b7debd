"""Finds a spec project with its options, and determines the environment of the project's shells."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.lease import temporary_folder
from harness.shell.spec.options import SpecOptions, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

SHELLSPEC_VERSION = "0.28.1"


def find_root(start: Path, fallback: Path) -> Path:
    """Return the nearest directory with a `.shellspec` file, from `start` upwards.

    Return `fallback` if there is no such directory.
    """
    for directory in (start, *start.parents):
        if (directory / ".shellspec").is_file():
            return directory
    return fallback


@dataclass(frozen=True, kw_only=True)
class Project:
    """A directory with specs, and the options from the directory's `.shellspec` files."""

    root: Path
    options: SpecOptions = field(default_factory=SpecOptions)

    @classmethod
    def of(cls, spec: Path, fallback: Path) -> Project:
        root = find_root(spec.parent, fallback)
        return cls(root=root, options=read_options(root))

    def relative(self, path: Path) -> str:
        """Return `path` relative to the project's directory, or the whole path if `path` is outside of the project."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def exec_dir(self, spec: Path) -> Path:
        """Return the working directory of a spec.

        Raises BadInputError for an invalid `--execdir`.
        """
        place, _, below = self.options.exec_dir.partition("/")
        if place == "@project":
            return self.root / below
        if place == "@specfile":
            return spec.parent / below
        if place == "@basedir":
            for directory in (spec.parent, *spec.parent.parents):
                if any((directory / n).exists() for n in (".shellspec", ".shellspec-basedir")):
                    return directory / below
            return self.root / below
        raise BadInputError(
            f"'--execdir {self.options.exec_dir}' has to begin with @project, @basedir or @specfile.",
            source=str(self.root / ".shellspec"),
        )


class ScratchFolder:
    """The temporary directory of a run, for mocks and for `SHELLSPEC_TMPBASE`.

    A lease protects the directory while the run lasts; if the run is killed, a later run removes
    the directory.
    """

    def __init__(self) -> None:
        self._lease = contextlib.ExitStack()
        self.path = self._lease.enter_context(temporary_folder("harness-shells"))
        self._count = 0

    def new_work_dir(self) -> Path:
        self._count += 1
        path = self.path / str(self._count)
        path.mkdir(mode=0o700)
        return path

    def close(self) -> None:
        self._lease.close()


def environment(
    project: Project, spec: Path, scratch: Path, work_dir: Path, mocks: Path
) -> Mapping[str, str]:
    """Return the variables that a spec's shell gets in addition to the environment of pytest."""
    options = project.options
    path = options.path if options.path is not None else os.environ.get("PATH", os.defpath)
    support = project.root / options.helper_dir / "support" / "bin"
    return {
        **project_variables(project, spec),
        "SHELLSPEC_TMPBASE": str(scratch),
        "SHELLSPEC_WORKDIR": str(work_dir),
        "SHELLSPEC_SPEC_NO": work_dir.name,
        "SHELLSPEC_UNIXTIME": str(int(time.time())),
        "SHELLSPEC_PATH": path,
        "SHELLSPEC_SUPPORT_BIN": str(Path(__file__).with_name("support_bin.sh")),
        "HX_MOCKS": str(mocks),
        "HX_REQUIRE": " ".join(options.requires),
        **_restricted_path(options, support),
        "PATH": f"{support}:{path}",
    }


def _restricted_path(options: SpecOptions, support: Path) -> Mapping[str, str]:
    """Return the variable `HX_PATH`, from which the shell sets PATH, or nothing without the option `--sandbox`."""
    if not options.mocks_only:
        return {}
    return {"HX_PATH": ":".join(filter(None, [str(support), options.sandbox_path]))}


def project_variables(project: Project, spec: Path) -> Mapping[str, str]:
    """Return the variables for all code of a spec, including code that the translation runs."""
    options = project.options
    helper_dir = str(project.root / options.helper_dir)
    load_path = [str(project.root / part) for part in options.load_path]
    env_from = (
        {} if options.env_from is None else {"HX_ENV_FROM": str(project.root / options.env_from)}
    )
    return {
        **env_from,
        **dict(options.env),
        "SHELLSPEC_PROJECT_ROOT": str(project.root),
        "SHELLSPEC_CWD": str(project.root),
        "SHELLSPEC_HELPERDIR": helper_dir,
        "SHELLSPEC_SPECDIR": helper_dir,
        "SHELLSPEC_SPECFILE": project.relative(spec),
        "SHELLSPEC_TMPDIR": tempfile.gettempdir(),
        "SHELLSPEC_SHELL": options.shell.text,
        "SHELLSPEC_SHELL_TYPE": options.shell.kind.value,
        "SHELLSPEC_VERSION": SHELLSPEC_VERSION,
        "SHELLSPEC_LOAD_PATH": ":".join([helper_dir, *load_path]),
        "SHELLSPEC_LIB": str(Path(__file__).parent),
    }
