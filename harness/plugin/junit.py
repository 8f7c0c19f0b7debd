"""Writes the JUnit file: `failure` means a wrong node, `error` a node that could not be checked.

If the run ended during a test, the file has no case for that test: pytest's case would have no name
and no verdict, and readers would count this case as passed.
"""

from __future__ import annotations

import contextlib
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.junitxml import xml_key  # pytest has no public name for the file's writer

from harness.plugin.unwritten import is_replaceable, note_unwritten
from harness.plugin.verdicts import is_broken
from harness.sharding.report_file import write_report
from harness.shell.spec.options import is_spec
from harness.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Generator

#: The suffix of an example's node id, if another example of the spec has the same name.
_LINE = re.compile(r" <line \d+>\Z")
#: The property that marks a case whose failure is an error; the written file does not contain this property.
_MARK = "harness_error_in_call"


def register(config: pytest.Config) -> None:
    """Register JUnitErrors if this process writes a JUnit file; xdist's workers write none."""
    path = config.getoption("xmlpath", None)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(JUnitErrors(Path(path), config), "harness-junit")


class JUnitErrors:
    """Marks tests that could not check the node, and makes their failures errors in JUnit's file.

    Pytest writes each error in a test's body as a failure, and has no hook to write an error
    instead.
    """

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._config = config
        self._path = path.expanduser().absolute()
        self._broken: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        xml = self._config.stash.get(xml_key, None)
        if xml is not None and is_spec(Path(report.nodeid.partition("::")[0])):
            classname, name = names_of_example(report.nodeid, report.location[2])
            reporter = xml.node_reporter(report)
            prefix = f"{xml.prefix}." if xml.prefix else ""
            reporter.add_attribute("classname", f"{prefix}{classname}")
            reporter.add_attribute("name", name)
        if report.when == "setup":
            # The test may be a rerun of a broken test.
            self._broken.discard(report.nodeid)
        elif report.when == "call" and report.failed and is_broken(report):
            self._broken.add(report.nodeid)
            # If the teardown fails too, pytest writes the properties of this report.
            report.user_properties.append((_MARK, "true"))
        elif report.when == "teardown" and report.passed and report.nodeid in self._broken:
            report.user_properties.append((_MARK, "true"))

    # This hook is the innermost wrapper, because pytest's terminal prints the file's name right
    # after it.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Let pytest write the report into memory, then write and rename a temporary file.

        On a full disk, pytest itself would leave half a file, and would print a traceback instead
        of the summary.
        """
        config = session.config
        xml = config.stash.get(xml_key, None)
        if xml is None:
            return (yield)
        # pytest escapes the values of these properties, but not their names.
        xml.global_properties = [(visible(name), value) for name, value in xml.global_properties]
        memory = os.memfd_create("junit")
        try:
            xml.logfile = f"/proc/self/fd/{memory}"
            try:
                result = yield
            finally:
                xml.logfile = str(self._path)
            with open(memory, encoding="utf-8", closefd=False) as file:
                file.seek(0)
                self._write(file.read())
        except (OSError, UnicodeError, ET.ParseError) as error:
            note_unwritten(session, self._path, error)
            if is_replaceable(self._path):
                with contextlib.suppress(OSError):
                    self._path.unlink()
            # Otherwise pytest would print the name of a file that does not exist.
            del config.stash[xml_key]
            config.pluginmanager.unregister(xml)
            return None
        finally:
            os.close(memory)
        return result

    def _write(self, text: str) -> None:
        content = visible(text).encode()
        root = ET.fromstring(content)  # noqa: S314 - pytest has just written it
        if mark_errors(root) + remove_unfinished(root):
            content = ET.tostring(root, encoding="utf-8", xml_declaration=True)
        if not is_replaceable(self._path):
            self._path.write_bytes(content)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_report(self._path, content)


def names_of_example(nodeid: str, description: str) -> tuple[str, str]:
    """Return the class name and the name of a spec's example in the JUnit file.

    Pytest would treat a `[` in a name as the beginning of parameters, and `::` as the beginning of
    another name. `description` has the same parts as the node id, but joined by spaces and not by
    `::`.
    """
    path, *parts = nodeid.split("::")
    names = parts[:1]
    at = len(_LINE.sub("", parts[0])) if parts else 0
    for part in parts[1:]:
        if description.startswith(f"::{part}", at):
            names[-1] += f"::{part}"
            at += 2 + len(part)
        else:
            names.append(part)
            at += 1 + len(_LINE.sub("", part))
    return ".".join([path.replace("/", "."), *names[:-1]]), names[-1] if names else ""


def mark_errors(root: ET.Element) -> int:
    """Change the failures of marked cases into errors, correct the totals, and return the number of changes."""
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
    """Remove the test cases without a name, and return the number of removed cases."""
    removed = 0
    for suite in root.iter("testsuite"):
        for case in suite.findall("testcase"):
            if case.get("name") is None:
                suite.remove(case)
                removed += 1
    return removed
