"""JUnit's file with a failure where the node is wrong, and an error where the harness could not tell.

It has no test case of a test during which the run ended: pytest writes one without a name and a verdict, which
readers count as passed.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.plugin.verdicts import is_broken

if TYPE_CHECKING:
    from collections.abc import Generator

#: The property of a test case whose failure is an error; it is taken out again.
_MARK = "harness_error_in_call"


def register(config: pytest.Config) -> None:
    """Tell the two apart in this run's file, if it writes one; workers of xdist write none."""
    path = config.getoption("xmlpath", None)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(JUnitErrors(Path(path)), "harness-junit")


class JUnitErrors:
    """Marks the reports of broken tests by a property, and changes pytest's file where it has that.

    Pytest writes each error in a test's body as a failure, and has no hook that chooses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser().absolute()
        self._broken: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            # The test may run again.
            self._broken.discard(report.nodeid)
        elif report.when == "call" and report.failed and is_broken(report):
            self._broken.add(report.nodeid)
            # Pytest takes the properties of this report where the teardown fails too.
            report.user_properties.append((_MARK, "true"))
        elif report.when == "teardown" and report.passed and report.nodeid in self._broken:
            report.user_properties.append((_MARK, "true"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Change the file that pytest has just written."""
        result = yield
        if self._path.is_file():
            tree = ET.parse(self._path)  # noqa: S314 - pytest has just written it
            if tell_apart(tree.getroot()) + remove_unfinished(tree.getroot()):
                part = self._path.with_name(f".{self._path.name}.part")
                tree.write(part, encoding="utf-8", xml_declaration=True)
                part.replace(self._path)
        return result


def tell_apart(root: ET.Element) -> int:
    """Turn the failures of marked test cases into errors, count anew, and return how many they were."""
    changed = 0
    for suite in root.iter("testsuite"):
        for case in suite.iter("testcase"):
            properties = case.find("properties")
            marks = [] if properties is None else properties.findall(f"*[@name='{_MARK}']")
            if properties is None or not marks:
                continue
            for mark in marks:
                properties.remove(mark)
            for failure in case.iter("failure"):
                failure.tag = "error"
                changed += 1
        for key, tag in (("failures", "failure"), ("errors", "error")):
            suite.set(key, str(sum(1 for _ in suite.iter(tag))))
    return changed


def remove_unfinished(root: ET.Element) -> int:
    """Remove the test cases without a name, and return how many they were."""
    removed = 0
    for suite in root.iter("testsuite"):
        for case in suite.findall("testcase"):
            if case.get("name") is None:
                suite.remove(case)
                removed += 1
    return removed
