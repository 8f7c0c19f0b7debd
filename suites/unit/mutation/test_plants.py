"""The planted bugs apply to the current sources."""

from __future__ import annotations

import ast
from pathlib import Path

from suites.e2e.promises import FAMILIES
from suites.mutation.machine_plants import PLANTS as MACHINE_PLANTS
from suites.mutation.plants import CORPUS, TARGETS

REPOSITORY = Path(__file__).parents[3]
BUGS = REPOSITORY / "suites/unit/provisioning/bugs"
PLANTS = (*TARGETS, *CORPUS.values(), *(each.plant for each in MACHINE_PLANTS))


def test_every_behaviour_of_the_contract_has_a_planted_bug() -> None:
    assert len(TARGETS) == 32
    assert len({plant.name for plant in TARGETS}) == 32


def test_every_defect_of_the_corpus_has_a_planted_bug_and_tests() -> None:
    names = [
        node.name
        for path in BUGS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]

    assert sorted(CORPUS) == list(range(1, 31))
    untested = [
        number
        for number in CORPUS
        if not any(name.startswith(f"test_{number:02d}_") for name in names)
    ]
    assert untested == []


def test_every_planted_defect_on_machines_has_tests() -> None:
    assert len({each.plant.name for each in MACHINE_PLANTS}) == len(MACHINE_PLANTS)
    for each in MACHINE_PLANTS:
        assert each.family in FAMILIES
        assert (REPOSITORY / "suites/e2e" / each.tests).is_file()


def test_each_bug_can_be_planted() -> None:
    """A planted source that is not valid Python fails later, when the suite runs."""
    texts = {path: (REPOSITORY / path).read_text() for path in {each.path for each in PLANTS}}

    unfit = [
        each for each in PLANTS if texts[each.path].count(each.old) != 1 or each.new == each.old
    ]
    assert unfit == []
