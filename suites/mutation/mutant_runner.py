"""Plants bugs in a copy of the sources, one at a time, and finds the test that kills each bug."""

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

    from typing_extensions import Self

    from harness.provisioning.command import CommandResult, Runner

    from .plants import Plant

COPIED = ("harness", "suites", "fixtures", "pyproject.toml", "conftest.py")
#: Finds a test that failed or whose set-up failed, or a test file that could not be collected.
_FAILED = re.compile(r"^(?:FAILED|ERROR) (suites/\S+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)


def copy_sources(repository: Path, top: Path) -> None:
    """Copy the part of a repository that the unit suite of provisioning needs."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        source = repository / name
        if source.is_dir():
            shutil.copytree(source, top / name, ignore=ignore)
        elif source.exists():
            shutil.copy(source, top / name)


class PlantError(HarnessError):
    """A bug cannot be planted, or the suite fails without a bug."""


@dataclass(frozen=True, kw_only=True)
class MutantResult:
    """The result of a planted bug: the test that killed the bug, or None if the bug survived."""

    plant: Plant
    killer: str | None


class MutantRunner:
    """Runs the suite on a copy of the sources, with one planted bug at a time.

    A run of the suite takes `limit_s` at most.
    """

    limit_s = 300.0

    def __init__(self, top: Path, runner: Runner) -> None:
        self.top = top
        self._runner = runner

    @classmethod
    def copy(cls, repository: Path, top: Path, runner: Runner | None = None) -> Self:
        """Copy the part of a repository that the unit suite needs."""
        copy_sources(repository, top)
        return cls(top, runner or LocalRunner())

    def try_suite(self, *selection: str) -> str | None:
        """Run the suite; return the first test that failed, or None if all passed.

        Raises PlantError if the suite could not be run.
        """
        result = self._run_suite(selection)
        if result.exit_code == 0:
            return None
        failed = _FAILED.search(result.stdout)
        if result.exit_code not in (1, 2) or failed is None:
            raise PlantError(f"The suite could not be run.\n{result.render()}")
        return failed[1]

    def _run_suite(self, selection: Sequence[str]) -> CommandResult:
        return self._runner.run(
            (
                *("env", "--chdir", str(self.top)),
                *(sys.executable, "-m", "pytest", "-x", "-q", "--tb=no"),
                *("-p", "no:cacheprovider", "-p", "no:randomly"),
                *selection,
            ),
            timeout_s=self.limit_s,
            env={
                "PYTHONPATH": str(self.top),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PATH": os.environ.get("PATH", os.defpath),
            },
        )

    @contextmanager
    def planted(self, plant: Plant) -> Iterator[None]:
        """Plant one bug in the copy until the context ends.

        Raises PlantError unless the text to replace occurs exactly once.
        """
        path = self.top / plant.path
        text = path.read_text()
        if text.count(plant.old) != 1:
            raise PlantError(
                f"'{plant.name}' cannot be planted: its text occurs {text.count(plant.old)} times "
                f"in '{plant.path}', expected once. Update the plant."
            )
        path.write_text(text.replace(plant.old, plant.new))
        try:
            yield
        finally:
            path.write_text(text)

    def run(self, plant: Plant, *selection: str) -> MutantResult:
        """Plant one bug, run the suite and return the result."""
        with self.planted(plant):
            return MutantResult(plant=plant, killer=self.try_suite(*selection))
