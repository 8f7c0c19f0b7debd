"""Plants bugs in a copy of the sources, one at a time, and looks which test dies of each."""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from harness.provisioning.command import CommandResult, Runner

    from .plants import Plant

COPIED = ("harness", "suites", "fixtures", "pyproject.toml", "conftest.py")
SUITE_LIMIT_S = 300.0
_FAILED = re.compile(r"^FAILED (\S+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)


def copy_sources(repository: Path, top: Path) -> None:
    """Copy what the unit suite of provisioning needs of a repository."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        source = repository / name
        if source.is_dir():
            shutil.copytree(source, top / name, ignore=ignore)
        elif source.exists():
            shutil.copy(source, top / name)


class PlantError(HarnessError):
    """A bug that cannot be planted, or a suite that fails without one."""


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What became of a planted bug: the test that killed it, or None for a survivor."""

    plant: Plant
    killer: str | None


class Nursery:
    """A copy of the sources in which bugs are planted and taken out again."""

    def __init__(self, top: Path, runner: Runner) -> None:
        self._top = top
        self._runner = runner

    @classmethod
    def copy(cls, repository: Path, top: Path, runner: Runner | None = None) -> Nursery:
        """Copy what the unit suite needs of a repository."""
        copy_sources(repository, top)
        return cls(top, runner or LocalRunner())

    def try_suite(self, *selection: str) -> str | None:
        """Run the suite; return the first test that failed, or None where all passed.

        Raises PlantError where the suite did not get as far as an answer.
        """
        result = self._run_suite(selection)
        if result.exit_code == 0:
            return None
        failed = _FAILED.search(result.stdout)
        if result.exit_code != 1 or failed is None:
            raise PlantError(f"The unit suite gave no answer.\n{result.render()}")
        return failed[1]

    def _run_suite(self, selection: Sequence[str]) -> CommandResult:
        return self._runner.run(
            (
                *("env", "--chdir", str(self._top)),
                *(sys.executable, "-m", "pytest", "-x", "-q", "--tb=no"),
                *("-p", "no:cacheprovider", "-p", "no:randomly"),
                *selection,
            ),
            timeout_s=SUITE_LIMIT_S,
            env={
                "PYTHONPATH": str(self._top),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PATH": os.environ.get("PATH", os.defpath),
            },
        )

    @contextmanager
    def planted(self, plant: Plant) -> Iterator[None]:
        """Have one bug in the copy for a while.

        Raises PlantError where the text to replace is not there exactly once.
        """
        path = self._top / plant.path
        text = path.read_text()
        if text.count(plant.old) != 1:
            raise PlantError(
                f"'{plant.name}' cannot be planted: its text occurs {text.count(plant.old)} times "
                f"in '{plant.path}', expected once. Write the plant anew."
            )
        path.write_text(text.replace(plant.old, plant.new))
        try:
            yield
        finally:
            path.write_text(text)

    def grow(self, plant: Plant, *selection: str) -> Fate:
        """Plant one bug and look what becomes of it."""
        with self.planted(plant):
            return Fate(plant=plant, killer=self.try_suite(*selection))
