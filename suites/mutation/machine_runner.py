"""Plants the defects of `machine_plants`, and runs machine tests with each defect."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.payload import build_payload

from .machine_plants import PLANTS
from .mutant_runner import MutantRunner, PlantError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .machine_plants import MachinePlant

_PROVISIONER = "harness/provisioner/gpu_node.py"
_BAKE_KEY = "bake_key=payload.digest"
#: The time limit for making the images, the bake and the saved states that all runs share.
_PREPARE_S = 2700.0


class MachineRunner(MutantRunner):
    """Runs machine tests on a copy of the sources, with the image that the sources without a defect baked."""

    limit_s = 900.0

    def pin_bake(self) -> None:
        """Let the copy use the image that is already baked; the defects do not change the bake."""
        path = self.top / _PROVISIONER
        text = path.read_text()
        if text.count(_BAKE_KEY) != 1:
            raise PlantError(f"'{_BAKE_KEY}' was expected once in '{_PROVISIONER}'.")
        path.write_text(text.replace(_BAKE_KEY, f'bake_key="{build_payload().digest}"'))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result for a defect: the test that caught the defect, or why no test did."""

    killer: str | None
    why_not: str = "NOT CAUGHT"

    @override
    def __str__(self) -> str:
        return self.why_not if self.killer is None else f"caught by {self.killer}"


def run_plants(repository: Path, wanted: str | None, image: str, children: int) -> int:
    """Plant each defect whose family and name match `wanted`, and print which test caught it.

    First, the tests of the first defect run without a defect. `children` defects are tried at the
    same time, each with a machine. Returns 0 if at most two defects were not caught, else 1.
    """
    chosen = [
        each
        for each in PLANTS
        if wanted is None or re.search(wanted, f"{each.family}: {each.plant.name}")
    ]
    if not chosen:
        raise PlantError(f"No defect matches '{wanted}'.")
    _prepare(repository, chosen[0], image)
    with ThreadPoolExecutor(children) as pool:
        verdicts = pool.map(lambda each: _run(repository, each, image), chosen)
        caught = sum(_report(verdicts, chosen))
    sys.stdout.write(f"{caught} of {len(chosen)} caught\n")
    return 0 if caught >= len(chosen) - 2 else 1


def _prepare(repository: Path, each: MachinePlant, image: str) -> None:
    """Make the images and states that the runs share; raises PlantError if tests fail without a defect."""
    with TemporaryDirectory(prefix="plant-") as folder:
        runner = MachineRunner.copy(repository, Path(folder))
        runner.limit_s = _PREPARE_S
        failed = runner.try_suite(*_selection(each, image))
    if failed is not None:
        raise PlantError(f"'{failed}' fails without a planted defect. Repair it first.")


def _run(repository: Path, each: MachinePlant, image: str) -> Verdict:
    with TemporaryDirectory(prefix="plant-") as folder:
        runner = MachineRunner.copy(repository, Path(folder))
        runner.pin_bake()
        try:
            return Verdict(killer=runner.run(each.plant, *_selection(each, image)).killer)
        except PlantError as error:
            return Verdict(killer=None, why_not=f"NOT KNOWN: {error}")


def _selection(each: MachinePlant, image: str) -> tuple[str, ...]:
    return (*each.selection, "-n0", f"--image={image}")


def _report(verdicts: Iterable[Verdict], chosen: Iterable[MachinePlant]) -> Iterable[bool]:
    for each, verdict in zip(chosen, verdicts, strict=True):
        sys.stdout.write(f"{each.family}: {each.plant.name}\n    {verdict}\n")
        if verdict.killer is None and each.hidden_by is not None:
            sys.stdout.write(f"    {each.hidden_by}\n")
        sys.stdout.flush()
        yield verdict.killer is not None
