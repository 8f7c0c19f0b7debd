"""The wheel of this repository in a separate virtual environment, made once for all workers of a run.

The wheel is built from a copy of the sources, since a build leaves files in its folder that the
next build would treat as sources. The wheel's dependencies have the versions of the lock file.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.provisioning.command import CommandResult

REPOSITORY = Path(__file__).parents[1]
_SOURCES = ("docs", "fixtures", "harness", "images", "LICENSE", "README.md", "pyproject.toml")
_BUILD_S = 300.0
_RUN_S = 120.0
#: What this run of pytest, and CI, would tell one inside the environment.
_FOREIGN = (
    "BUILD_NUMBER",
    "CI",
    "PYTEST_ADDOPTS",
    "PYTEST_CURRENT_TEST",
    "PYTEST_XDIST_TESTRUNUID",
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_WORKER_COUNT",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "VIRTUAL_ENV",
)


@dataclass(frozen=True, kw_only=True)
class InstalledWheel:
    """The wheel, the sdist from which it was built, and the environment in which it is installed."""

    wheel: Path
    sdist: Path
    venv: Path

    def run(
        self, *argv: str, cwd: Path, timeout_s: float = _RUN_S, path: Sequence[Path] = ()
    ) -> CommandResult:
        """Run a command in `cwd`; PATH has the environment's programs, then `path` or this run's PATH."""
        rest = os.pathsep.join(map(str, path)) or os.environ["PATH"]
        forget = [word for name in _FOREIGN for word in ("-u", name)]
        return LocalRunner().run(
            ["env", "-C", str(cwd), *forget, *argv],
            timeout_s=timeout_s,
            env={"PATH": f"{self.venv / 'bin'}{os.pathsep}{rest}"},
        )

    def pip(self, *arguments: str) -> None:
        """Run pip in the environment, which all tests of the run share."""
        argv = ("python", "-m", "pip", *arguments)
        self.run(*argv, cwd=self.venv, timeout_s=_BUILD_S).check("Running pip")


@pytest.fixture(scope="session")
def installed_wheel(tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """Return the installed wheel; the first worker builds and installs it, and other workers wait."""
    top = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        top = top.parent
    folder = top / "installed-wheel"
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _build(folder)
            _make_venv(folder)
            (folder / "done").touch()
    return _found(folder)


def copy_sources(sources: Path) -> None:
    """Copy the sources of the wheel to a new folder."""
    sources.mkdir(parents=True)
    for name in _SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, sources / name, symlinks=True, ignore=ignored)
        else:
            shutil.copyfile(source, sources / name)


def _build(folder: Path) -> None:
    sources = folder / "sources"
    copy_sources(sources)
    # The wheel is built from the sdist, so both are complete or the build fails.
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist")]
    built = LocalRunner().run([*argv, str(sources)], timeout_s=_BUILD_S)
    built.check("Building sdist and wheel")


def _make_venv(folder: Path) -> None:
    made = _found(folder)
    argv = [sys.executable, "-m", "venv", str(made.venv)]
    LocalRunner().run(argv, timeout_s=_RUN_S).check("Making a virtual environment")
    # Tests compile only the modules that they import.
    install = ("install", "--quiet", "--no-compile")
    made.pip(*install, "--require-hashes", "-r", str(REPOSITORY / "locks/wheel.txt"))
    made.pip(*install, "--no-deps", str(made.wheel))
    # What the wheel asks for is what the lock has.
    made.pip("check")


def _found(folder: Path) -> InstalledWheel:
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return InstalledWheel(wheel=wheel, sdist=sdist, venv=folder / "venv")
