"""Virtual environments with this repository's wheel and packages that have entry points for the wheel."""

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
from suites.installed_wheel import installed_wheel  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from harness.provisioning.command import CommandResult
    from suites.installed_wheel import InstalledWheel

SAMPLE = Path(__file__).with_name("sample_plugin")
_BUILD_S = 300.0
_RUN_S = 120.0


@dataclass(frozen=True, kw_only=True)
class PluginSite:
    """A virtual environment with the wheel, in which packages with entry points are installed."""

    venv: Path
    wheel: InstalledWheel

    def install(self, sources: Path) -> None:
        """Build and install a package without its dependencies, since the wheel is installed already.

        The pip of this run builds the package, with the locked setuptools.
        """
        (site,) = self.venv.glob("lib/python*/site-packages")
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation"]
        argv += ["--no-deps", "--target", str(site), str(sources)]
        LocalRunner().run(argv, timeout_s=_BUILD_S).check("Installing a plug-in")

    def harness(self, *arguments: str, cwd: Path) -> CommandResult:
        return self._run("harness.cli", *arguments, cwd=cwd)

    def pytest(self, *arguments: str, cwd: Path) -> CommandResult:
        return self._run("pytest", "-p", "no:cacheprovider", *arguments, cwd=cwd)

    def _run(self, module: str, *arguments: str, cwd: Path) -> CommandResult:
        python = str(self.venv / "bin/python")
        return self.wheel.run(python, "-m", module, *arguments, cwd=cwd, timeout_s=_RUN_S)


def _make(folder: Path, wheel: InstalledWheel) -> PluginSite:
    """Make an environment that can import the packages of the wheel's environment."""
    shutil.rmtree(folder, ignore_errors=True)
    argv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    LocalRunner().run(argv, timeout_s=_BUILD_S).check("Making a virtual environment")
    (own,) = folder.glob("lib/python*/site-packages")
    (others,) = wheel.venv.glob("lib/python*/site-packages")
    (own / "wheel.pth").write_text(f"{others}\n")
    return PluginSite(venv=folder, wheel=wheel)


@pytest.fixture(scope="session")
def sample_site(
    installed_wheel: InstalledWheel,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> PluginSite:
    """Return an environment with the sample package, made once for all workers."""
    top = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        top = top.parent
    folder = top / "plugin-site"
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            _make(folder, installed_wheel).install(SAMPLE)
            (folder / "done").touch()
    return PluginSite(venv=folder, wheel=installed_wheel)


@pytest.fixture
def broken_site(sample_site: PluginSite, tmp_path: Path) -> PluginSite:
    """Return an environment with the sample package, and with a package that raises when imported."""
    site = _make(tmp_path / "venv", sample_site.wheel)
    (own,) = site.venv.glob("lib/python*/site-packages")
    (sample,) = sample_site.venv.glob("lib/python*/site-packages")
    (own / "sample.pth").write_text(f"{sample}\n")
    # These are the files that pip would install.
    (own / "broken_gpus").mkdir()
    (own / "broken_gpus/__init__.py").write_text("raise RuntimeError('no licence')\n")
    facts = own / "broken_gpus-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-gpus\nVersion: 0.1\n")
    groups = ("gpu_models", "images", "provisioners", "machine_drivers", "expectations")
    (facts / "entry_points.txt").write_text(
        "".join(f"[gpu_node_harness.{group}]\nbroken = broken_gpus:thing\n" for group in groups)
    )
    return site
