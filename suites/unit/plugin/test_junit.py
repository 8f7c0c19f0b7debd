"""Failures and errors told apart in JUnit's file."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from harness.plugin.junit import _MARK, remove_unfinished, tell_apart

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
