"""The page on reliability is made from the summaries and faults in the repository."""

from __future__ import annotations

import re

import pytest

from suites.endurance.faults import FAULTS, Fault
from suites.endurance.page import PAGE, read_summaries, render


def test_committed_fault_page_matches_its_generator() -> None:
    assert PAGE.read_text() == render(read_summaries(), FAULTS), (
        "Run `python -m suites.endurance.page`."
    )


@pytest.mark.parametrize("fault", [each for each in FAULTS if each.test is not None])
def test_regression_test_of_each_fixed_fault_exists(fault: Fault) -> None:
    assert fault.test is not None
    file, _, name = fault.test.partition("::")
    text = (PAGE.parents[1] / file).read_text()
    assert re.search(rf"def {re.escape(name)}\(", text), f"'{fault.test}' is no test."


def test_each_fault_without_a_regression_test_has_a_reason() -> None:
    assert all(each.test is not None or each.why for each in FAULTS)


def test_page_lists_tries_and_seeds_and_unfixed_faults() -> None:
    tries = {"bundle, any": 3, "bundle, the first process": 2, "store push, any": 0}
    run = {"campaign": "crash", "seed": 7, "minutes": 1.5, "tries": tries, "found": [{}]}
    faults = [
        Fault(campaign="crash", what="a mount stayed", test="suites/x.py::test_y"),
        Fault(campaign="crash", what="a file stayed", why="It is small."),
    ]

    page = render([run], faults)

    assert "| 7 | 1.5 | 5 | 1 |" in page
    assert "bundle, any: 3; bundle, the first process: 2." in page
    assert "Cases not tried so far: store push, any." in page
    assert (
        "* Found and fixed: a mount stayed. The regression test is `suites/x.py::test_y`." in page
    )
    assert "* Found and not fixed: a file stayed. It is small." in page
    assert page.count("No run of this campaign was completed so far.") == 6


def test_page_counts_untried_cases_of_the_run_with_the_most_cases() -> None:
    """An earlier run may have had other parts, which are no cases any more."""
    parts = {f"part {number} of 24": int(number == 7) for number in range(1, 25)}
    runs = [
        {"campaign": "load", "seed": seed, "minutes": 1.0, "tries": tries, "found": []}
        for seed, tries in ((1, {"part 1 of 2": 1, "part 2 of 2": 0}), (2, parts))
    ]

    page = render(runs, [])

    assert "23 of 24 cases were not tried so far." in page
    assert "Cases not tried so far" not in page
