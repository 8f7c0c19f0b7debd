"""The defects that `./dev plants` plants on machines each select an existing test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from _pytest.mark.expression import Expression

from harness.provisioning.command import LocalRunner
from suites.mutation.machine_plants import PLANTS

if TYPE_CHECKING:
    from suites.mutation.machine_plants import MachinePlant

REPOSITORY = Path(__file__).parents[3]
_COLLECT_S = 120.0


def machine_tests() -> list[str]:
    """Return the node ids of all machine tests, collected by another pytest process."""
    argv = [
        *("env", "--chdir", str(REPOSITORY), sys.executable, "-m", "pytest"),
        *("suites/e2e", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider"),
    ]
    result = LocalRunner().run(argv, timeout_s=_COLLECT_S)
    result.check("Collecting the machine tests")
    return [line for line in result.stdout.splitlines() if "::" in line]


def selects(each: MachinePlant, test: str) -> bool:
    """Return whether the defect's path and `-k` expression select a test, as pytest would."""
    if not test.startswith(f"suites/e2e/{each.tests}"):
        return False

    def is_in_name(name: str, /, **_: object) -> bool:
        return name.lower() in test.lower()

    return each.only is None or Expression.compile(each.only).evaluate(is_in_name)


def test_each_planted_machine_defect_selects_an_existing_test() -> None:
    tests = machine_tests()

    assert len(tests) > 1000
    without = [each.plant.name for each in PLANTS if not any(selects(each, t) for t in tests)]
    assert without == [], "Tests of these defects were renamed: adapt their `only`."
