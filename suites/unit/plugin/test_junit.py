"""Failures and errors told apart in JUnit's file."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from harness.plugin.junit import _MARK, names_of_example, remove_unfinished, tell_apart

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
        ("spec/a_spec.sh::g::b", "g b", ("spec.a_spec.sh.g", "b")),
        ("spec/a_spec.sh::g [x]::a ] b [c] d", "g [x] a ] b [c] d", ("spec.a_spec.sh.g [x]", "a ] b [c] d")),
        ("a_spec.sh::g::[x", "g [x", ("a_spec.sh.g", "[x")),
        ("a_spec.sh::]", "]", ("a_spec.sh", "]")),
        ("a_spec.sh::gpu::probe::a::b", "gpu::probe a::b", ("a_spec.sh.gpu::probe", "a::b")),
        ("a_spec.sh::g::b <line 28>", "g b", ("a_spec.sh.g", "b <line 28>")),
    ],
)  # fmt: skip
def test_example_keeps_its_name(nodeid: str, description: str, names: tuple[str, str]) -> None:
    assert names_of_example(nodeid, description) == names
