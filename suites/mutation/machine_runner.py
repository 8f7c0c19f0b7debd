"""Plants the defects of `machine_plants`, and runs tests on machines with each."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.payload import build_payload

from .machine_plants import PLANTS
from .mutant_runner import MutantRunner, PlantError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .machine_plants import MachinePlant

_PROVISIONER = "harness/provisioner/gpu_node.py"
_BAKE_KEY = "bake_key=payload.digest"
#: How many plants run at the same time, each with a machine.
_CHILDREN = 2


class MachineRunner(MutantRunner):
    """Runs machine tests on a copy of the sources, with the image that the unplanted ones baked."""

    def pin_bake(self) -> None:
        """Let the copy use the image that is baked already; the defects are not about the bake."""
        path = self.top / _PROVISIONER
        text = path.read_text()
        if text.count(_BAKE_KEY) != 1:
            raise PlantError(f"'{_BAKE_KEY}' was expected once in '{_PROVISIONER}'.")
        path.write_text(text.replace(_BAKE_KEY, f'bake_key="{build_payload().digest}"'))


def run_plants(repository: Path, wanted: str | None, image: str) -> int:
    """Plant each defect whose name or family matches `wanted`, and print what caught it.

    Returns 0 if all but two of them were caught, else 1.
    """
    chosen = [
        each
        for each in PLANTS
        if wanted is None or re.search(wanted, f"{each.family}: {each.plant.name}")
    ]
    with ThreadPoolExecutor(_CHILDREN) as pool:
        results = pool.map(lambda each: _run(repository, each, image), chosen)
        caught = sum(_report(results, chosen))
    sys.stdout.write(f"{caught} of {len(chosen)} caught\n")
    return 0 if caught >= len(chosen) - 2 else 1


def _run(repository: Path, each: MachinePlant, image: str) -> str | None:
    with TemporaryDirectory(prefix="plant-") as folder:
        runner = MachineRunner.copy(repository, Path(folder))
        runner.pin_bake()
        return runner.run(each.plant, *each.selection, "-n0", f"--image={image}").killer


def _report(results: Iterable[str | None], chosen: Iterable[MachinePlant]) -> Iterable[bool]:
    for each, killer in zip(chosen, results, strict=True):
        verdict = "NOT CAUGHT" if killer is None else f"caught by {killer}"
        sys.stdout.write(f"{each.family}: {each.plant.name}\n    {verdict}\n")
        sys.stdout.flush()
        yield killer is not None
