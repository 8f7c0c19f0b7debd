"""Which labels and severities Allure's results have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from allure_commons.types import LabelType

from harness.errors import BadInputError
from harness.plugin.allure_report import AllureReport, _escaped, _severities
from harness.settings import Settings

NODE = "suites/e2e/record/test_boot.py::TestBoot::test_x[a::b]"
DEFAULT = [
    (LabelType.PARENT_SUITE, "suites.e2e.record"),
    (LabelType.SUITE, "test_boot"),
    (LabelType.SUB_SUITE, "TestBoot"),
]


def labels(
    given: list[tuple[str, str]], facts: dict[str, str] | None = None, **severities: str
) -> list[tuple[str, str]]:
    config: Any = None
    known = {"suites/e2e/record": "critical", "suites/e2e": "minor", **severities}
    report = AllureReport(config, Settings(), Path("results"), known)
    return report._labels(given, NODE, facts or {})


def test_labels_that_allure_made_of_the_path_become_ours() -> None:
    found = dict(labels([("tag", "slow"), *DEFAULT]))

    assert found["tag"] == "slow"
    assert found[LabelType.PARENT_SUITE] != "suites.e2e.record"
    assert found[LabelType.SEVERITY] == "critical"


def test_labels_that_a_test_states_itself_stay() -> None:
    own = [(LabelType.PARENT_SUITE, "Mine"), *DEFAULT[1:], (LabelType.SEVERITY, "trivial")]

    assert labels(own, {"tag": "x", "image": "debian-12"}) == [
        *own,
        ("tag", "x"),
        ("image", "debian-12"),
    ]


def a_config(*lines: str) -> Any:
    return SimpleNamespace(getini=lambda _: list(lines), inipath=Path("pytest.ini"))


def test_severities_are_read_by_folder() -> None:
    assert _severities(a_config("suites/e2e/: critical", " a b:c.py :minor ")) == {
        "suites/e2e": "critical",
        "a b:c.py": "minor",
    }


@pytest.mark.parametrize("line", ["suites/e2e", "suites: worst", ": minor"])
def test_severity_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(BadInputError, match=r"pytest\.ini: key 'allure_severity'"):
        _severities(a_config(line))


def test_properties_of_the_run_are_on_one_line_each() -> None:
    assert _escaped("C:\\x\ny") == "C:\\\\x\\ny"
