"""Mutation tests.

python -m suites.mutation                   run mutmut over all of provisioning
python -m suites.mutation --package expect  run mutmut over another package
python -m suites.mutation --package lab --module node   run mutmut over a module of a package
python -m suites.mutation --targets         plant a bug for each behaviour in the contract's list
python -m suites.mutation --corpus          plant the defects of the regression corpus
python -m suites.mutation --example         plant defects of the example provisioner, test nodes
python -m suites.mutation --machines        plant defects of provisioning, test nodes
python -m suites.mutation --file PATCH      plant the bugs of unified diffs, run the chosen tiers
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from suites.e2e.shell_provisioner.planting import plant_all

from .machine_runner import run_plants
from .mutant_runner import MutantRunner, PlantError
from .packages import PACKAGES
from .patch_runner import PatchPlan, find_patches, plant_patches, select
from .plants import CORPUS, TARGETS
from .tool import run_tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .plants import Plant

REPOSITORY = Path(__file__).parents[2]
SUITE = "suites/unit/provisioning"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="mutants", description="Plant bugs in a package and run its unit suite."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--targets",
        action="store_true",
        help="plant a bug for each of the contract's 32 behaviours",
    )
    which.add_argument(
        "--corpus", action="store_true", help="plant the defects of the regression corpus"
    )
    which.add_argument(
        "--example",
        action="store_true",
        help="plant six defects of the example provisioner, and test nodes",
    )
    which.add_argument(
        "--machines",
        metavar="PATTERN",
        nargs="?",
        const="",
        help="plant realistic defects of provisioning, all or those whose FAMILY: NAME matches, and test nodes",
    )
    parser.add_argument(
        "--file",
        metavar="PATCH",
        type=Path,
        action="append",
        default=[],
        help="plant the bug of a unified diff, or the bugs of all diffs in a folder (repeatable)",
    )
    parser.add_argument(
        "--tier",
        metavar="NAME[,NAME...]",
        action="append",
        default=[],
        help="with --file: run unit, host or machine tests (default: unit,host)",
    )
    parser.add_argument(
        "--tests",
        metavar="PATH",
        action="append",
        default=[],
        help="with --file: run only these tests of their tier, such as suites/e2e/record (repeatable)",
    )
    parser.add_argument(
        "--new-bake",
        action="store_true",
        help="with --file: bake the node's image again with each bug, and not only once without a bug",
    )
    parser.add_argument("--json", action="store_true", help="with --file: print JSON")
    parser.add_argument(
        "--image", default="debian-12", help="the image of the nodes (default: %(default)s)"
    )
    parser.add_argument(
        "--package",
        choices=sorted(PACKAGES),
        default="provisioning",
        help="the package that mutmut mutates (default: provisioning)",
    )
    parser.add_argument(
        "--module",
        metavar="NAME",
        action="append",
        default=[],
        help="mutate only this module of the package, such as qemu.machine (repeatable)",
    )
    parser.add_argument(
        "--children",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="how many mutants to run in parallel (default: the number of cores)",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Return 0 if the unit suite killed the required mutants."""
    arguments = build_parser().parse_args(argv)
    if arguments.example:
        return plant_all()
    if arguments.file:
        return plant_files(arguments)
    if arguments.machines is not None:
        return run_plants(
            REPOSITORY, arguments.machines or None, arguments.image, arguments.children
        )
    if not (arguments.targets or arguments.corpus):
        package = PACKAGES[arguments.package]
        if arguments.module:
            package = package.of_modules(arguments.module, REPOSITORY)
        return run_tool(REPOSITORY, arguments.children, package)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        mutant_runner = MutantRunner.copy(REPOSITORY, Path(folder))
        healthy = mutant_runner.try_suite(SUITE)
        if healthy is not None:
            raise PlantError(
                f"The unit suite fails without a planted bug: {healthy}. Repair it first."
            )
        if arguments.targets:
            return run_all(mutant_runner, ((plant, (SUITE,)) for plant in TARGETS), len(TARGETS))
        return run_all(
            mutant_runner,
            (
                (plant, (f"{SUITE}/bugs", "-k", f"test_{number:02d}_"))
                for number, plant in CORPUS.items()
            ),
            len(CORPUS),
        )


def plant_files(arguments: argparse.Namespace) -> int:
    """Plant the bugs of patches, and return the exit code; for wrong arguments, print why and return 2."""
    try:
        plan = PatchPlan(
            patches=tuple(find_patches(arguments.file)),
            selections=select(arguments.tier, arguments.tests),
            image=arguments.image,
            children=arguments.children,
            new_bake=arguments.new_bake,
        )
        return plant_patches(REPOSITORY, plan, as_json=arguments.json)
    except (BadInputError, PlantError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def run_all(
    mutant_runner: MutantRunner, plants: Iterable[tuple[Plant, tuple[str, ...]]], total: int
) -> int:
    """Plant one bug after the other, and print which test killed each bug."""
    killed = 0
    for plant, selection in plants:
        result = mutant_runner.run(plant, *selection)
        killed += result.killer is not None
        verdict = f"killed by {result.killer}" if result.killer else "SURVIVED"
        print(f"{plant.name}  [{plant.file}]\n    {verdict}", flush=True)  # noqa: T201
    print(f"{killed} of {total} killed", flush=True)  # noqa: T201
    return 0 if killed == total else 1


if __name__ == "__main__":
    sys.exit(main())
