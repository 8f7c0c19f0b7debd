"""Failures and errors told apart in JUnit's file."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.plugin import junit
from harness.plugin.junit import (
    _MARK,
    JUnitErrors,
    names_of_example,
    remove_unfinished,
    tell_apart,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

REPORT = f"""
<testsuites><testsuite failures="2" errors="1" tests="3">
<testcase name="a"><properties><property name="{_MARK}" value="true"/><property name="x" value="1"/>
</properties><failure message="QEMU died"/></testcase>
<testcase name="b"><failure message="wrong"/></testcase>
<testcase name="c"><error message="teardown"/></testcase>
</testsuite></testsuites>
"""


def test_marked_failure_becomes_an_error_and_is_counted_as_one() -> None:
    root = ET.fromstring(REPORT)  # noqa: S314 - a literal

    assert tell_apart(root) == 1

    (suite,) = root.iter("testsuite")
    assert (suite.get("failures"), suite.get("errors"), suite.get("tests")) == ("1", "2", "3")
    assert [[each.tag for each in case if each.tag != "properties"] for case in suite] == [
        ["error"],
        ["failure"],
        ["error"],
    ]
    assert [each.get("name") for each in root.iter("property")] == ["x"]


def test_test_during_which_the_run_ended_has_no_test_case() -> None:
    root = ET.fromstring(  # noqa: S314 - a literal
        """<testsuites><testsuite tests="1"><testcase name="ended"/><testcase/></testsuite></testsuites>"""
    )

    assert remove_unfinished(root) == 1

    assert [case.get("name") for case in root.iter("testcase")] == ["ended"]


@pytest.mark.parametrize(
    ("nodeid", "description", "names"),
    [
        ("spec/a_spec.sh::g [x]::a ] b [c] d", "g [x] a ] b [c] d", ("spec.a_spec.sh.g [x]", "a ] b [c] d")),
        ("a_spec.sh::g::[x", "g [x", ("a_spec.sh.g", "[x")),
        ("a_spec.sh::]", "]", ("a_spec.sh", "]")),
        ("a_spec.sh::gpu::probe::a::b", "gpu::probe a::b", ("a_spec.sh.gpu::probe", "a::b")),
        ("a_spec.sh::g::b <line 28>", "g b", ("a_spec.sh.g", "b <line 28>")),
    ],
)  # fmt: skip
def test_example_keeps_its_name(nodeid: str, description: str, names: tuple[str, str]) -> None:
    assert names_of_example(nodeid, description) == names


def phases(
    monkeypatch: pytest.MonkeyPatch, *phases: tuple[str, str], tests: str = "x"
) -> Sequence[tuple[str, bool]]:
    """Report phases of tests in turns, each with its outcome; return which of them were marked."""
    config: Any = SimpleNamespace(stash=pytest.Stash())
    errors = JUnitErrors(Path("out.xml"), config)
    monkeypatch.setattr(junit, "is_broken", lambda report: report.outcome == "broken")
    marked = []
    for (when, outcome), test in zip(phases, itertools.cycle(tests), strict=False):
        report: Any = SimpleNamespace(
            nodeid=f"a.py::{test}",
            when=when,
            outcome=outcome,
            failed=outcome in {"failed", "broken"},
            passed=outcome == "passed",
            user_properties=[("own", "1")],
        )
        errors.pytest_runtest_logreport(report)
        assert report.user_properties[0] == ("own", "1")
        marked.append((when, (_MARK, "true") in report.user_properties))
    return marked


SETUP, TEARDOWN = ("setup", "passed"), ("teardown", "passed")


@pytest.mark.parametrize(
    ("call", "teardown", "marked"),
    [
        ("broken", "passed", ["call", "teardown"]),
        ("broken", "failed", ["call"]),
        ("failed", "passed", []),
    ],
)
def test_error_in_the_body_of_a_test_is_marked(
    monkeypatch: pytest.MonkeyPatch, call: str, teardown: str, marked: list[str]
) -> None:
    """Pytest takes the properties of the last report that has a verdict."""
    found = phases(monkeypatch, SETUP, ("call", call), ("teardown", teardown))

    assert [when for when, is_marked in found if is_marked] == marked


@pytest.mark.parametrize("second", ["failed", "passed"])
def test_second_run_of_a_test_is_judged_by_itself(
    monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    found = phases(
        monkeypatch, SETUP, ("call", "broken"), TEARDOWN, SETUP, ("call", second), TEARDOWN
    )

    assert [is_marked for _, is_marked in found] == [False, True, True, False, False, False]


def test_tests_of_two_workers_are_judged_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their reports come in any order."""
    calls = ("call", "broken"), ("call", "passed")

    found = phases(monkeypatch, SETUP, SETUP, *calls, TEARDOWN, TEARDOWN, tests="xy")
    late = phases(monkeypatch, SETUP, TEARDOWN, calls[0], SETUP, TEARDOWN, calls[1], tests="xy")

    assert [is_marked for _, is_marked in found] == [False, False, True, False, True, False]
    assert [is_marked for _, is_marked in late] == [False, False, True, False, True, False]


def test_error_in_setup_is_one_for_pytest_already(monkeypatch: pytest.MonkeyPatch) -> None:
    assert phases(monkeypatch, ("setup", "broken"), TEARDOWN) == [
        ("setup", False),
        ("teardown", False),
    ]
