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


def test_contract_has_32_planted_bugs_with_unique_names() -> None:
    assert len(TARGETS) == 32
    assert len({plant.name for plant in TARGETS}) == 32


def test_each_of_the_30_corpus_defects_has_a_planted_bug_and_a_test() -> None:
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


def test_each_planted_bug_for_machine_tests_has_an_existing_test_file() -> None:
    assert len({each.plant.name for each in MACHINE_PLANTS}) == len(MACHINE_PLANTS)
    for each in MACHINE_PLANTS:
        assert each.family in FAMILIES
        assert (REPOSITORY / "suites/e2e" / each.tests).is_file()


def test_text_to_replace_occurs_exactly_once_in_the_source_for_each_planted_bug() -> None:
    """A planted source that is not valid Python fails later, when the suite runs."""
    texts = {path: (REPOSITORY / path).read_text() for path in {each.path for each in PLANTS}}

    unfit = [
        each for each in PLANTS if texts[each.path].count(each.old) != 1 or each.new == each.old
    ]
    assert unfit == []
