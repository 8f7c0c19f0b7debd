"""JUnit's file distinguishes failures from errors, and is written whole or not at all."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from _pytest.junitxml import LogXML, xml_key

from harness.plugin import junit
from harness.plugin.junit import _MARK, JUnitErrors, names_of_example
from harness.plugin.verdicts import mark_broken

if TYPE_CHECKING:
    from collections.abc import Sequence


def a_config(path: Path) -> Any:
    return SimpleNamespace(
        option=SimpleNamespace(xmlpath=str(path)),
        stash=pytest.Stash(),
        pluginmanager=pytest.PytestPluginManager(),
    )


class Run:
    """A fake run of pytest in which pytest's own writer writes JUnit's file to `path`."""

    def __init__(self, path: Path) -> None:
        self.xml = LogXML(str(path), None, logging="no")
        self.config = a_config(path)
        self.config.stash[xml_key] = self.xml
        self.config.pluginmanager.register(self.xml)
        self.errors = JUnitErrors(path, self.config)
        self.xml.pytest_sessionstart()

    def report(
        self, test: str, when: Any, outcome: Any = "passed", *, broken: bool = False
    ) -> None:
        report = pytest.TestReport(
            f"a.py::{test}",
            ("a.py", 1, test),
            {},
            outcome,
            "no" if outcome == "failed" else None,
            when,
        )
        if broken:
            mark_broken(report)
        self.errors.pytest_runtest_logreport(report)
        self.xml.pytest_runtest_logreport(report)

    def run(self, test: str, outcome: Any = "passed", *, broken: bool = False) -> None:
        self.report(test, "setup")
        self.report(test, "call", outcome, broken=broken)
        self.report(test, "teardown")

    def finish(self) -> int:
        """End the run, and return its exit status."""
        session: Any = SimpleNamespace(config=self.config, exitstatus=0)
        ending = self.errors.pytest_sessionfinish(session)
        next(ending)
        self.xml.pytest_sessionfinish()
        with pytest.raises(StopIteration):
            ending.send(None)
        return int(session.exitstatus)


def test_junit_file_separates_errors_from_failures_and_omits_unfinished_tests(
    tmp_path: Path,
) -> None:
    rows: list[tuple[list[str], list[str]]] = [
        ([], []),
        ([], ["e"]),
        (["b"], []),
        (["b", "d"], ["e", "f"]),
    ]
    for number, (broken, begun) in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = Run(folder / "junit.xml")
        for test in "abcd":
            run.run(test, "passed" if test == "c" else "failed", broken=test in broken)
        for test in begun:
            run.report(test, "setup")

        status = run.finish()

        root = ET.parse(folder / "junit.xml").getroot()  # noqa: S314 - the test's own
        (suite,) = root.iter("testsuite")
        found = {
            str(case.get("name")): [each.tag for each in case if each.tag != "properties"]
            for case in suite.iter("testcase")
        }
        assert found == {
            test: [] if test == "c" else ["error"] if test in broken else ["failure"]
            for test in "abcd"
        }, broken
        assert (suite.get("failures"), suite.get("errors")) == (
            str(3 - len(broken)),
            str(len(broken)),
        ), broken
        assert not list(root.iter("property")), broken
        assert [path.name for path in folder.iterdir()] == ["junit.xml"], broken
        assert status == 0, broken


def test_control_characters_are_escaped_in_property_names_of_the_junit_file(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "junit.xml")
    run.run("a")
    run.xml.add_global_property("\udce9\x00 <b>", "\udce9")

    assert run.finish() == 0

    root = ET.parse(tmp_path / "junit.xml")  # noqa: S314 - pytest has just written it
    found = root.find("testsuite/properties/property")
    assert found is not None
    assert found.get("name") == "\\udce9\\x00 <b>"


def test_failed_write_of_the_junit_file_leaves_no_earlier_or_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link or a device at the file's path is kept."""
    for number, is_link in enumerate((False, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "junit.xml"
        (folder / "earlier.xml").write_text("earlier")
        if is_link:
            path.symlink_to("earlier.xml")
        else:
            path.write_text("earlier")
        run = Run(path)
        run.run("a")

        def fail(at: Path, content: bytes) -> NoReturn:
            at.write_text(content[:9].decode())
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", fail)
        status = run.finish()

        assert status == pytest.ExitCode.INTERNAL_ERROR, is_link
        assert {each.name for each in folder.iterdir()} == {
            "earlier.xml",
            *["junit.xml"] * is_link,
        }, is_link
        assert "No space left on device" in capsys.readouterr().err, is_link
        assert not run.config.pluginmanager.is_registered(run.xml), is_link


def test_junit_plugin_is_registered_in_the_controller_but_not_in_a_worker(tmp_path: Path) -> None:
    for is_worker in (False, True):
        config = a_config(tmp_path / "junit.xml")
        config.getoption = lambda *_: str(tmp_path / "junit.xml")
        if is_worker:
            config.workerinput = {}

        junit.register(config)

        assert config.pluginmanager.has_plugin("harness-junit") is not is_worker, is_worker


def test_junit_names_of_an_example_are_its_groups_and_its_description() -> None:
    for nodeid, description, names in (
        (
            "spec/a_spec.sh::g [x]::a ] b [c] d",
            "g [x] a ] b [c] d",
            ("spec.a_spec.sh.g [x]", "a ] b [c] d"),
        ),
        ("a_spec.sh::g::[x", "g [x", ("a_spec.sh.g", "[x")),
        ("a_spec.sh::]", "]", ("a_spec.sh", "]")),
        ("a_spec.sh::gpu::probe::a::b", "gpu::probe a::b", ("a_spec.sh.gpu::probe", "a::b")),
        ("a_spec.sh::g::b <line 28>", "g b", ("a_spec.sh.g", "b <line 28>")),
        ("a_spec.sh::g::h <line 9>::a::b", "g h a::b", ("a_spec.sh.g.h <line 9>", "a::b")),
    ):
        assert names_of_example(nodeid, description) == names, nodeid


def phases(
    monkeypatch: pytest.MonkeyPatch, *phases: tuple[str, str], tests: str = "x"
) -> Sequence[tuple[str, bool]]:
    """Report phases with their outcomes, for one test after the other; return which phases were marked."""
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


def test_harness_error_in_the_call_phase_is_marked_in_the_last_report_with_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pytest writes the properties of the last report that has a verdict."""
    rows: list[tuple[str, str, list[str]]] = [
        ("broken", "passed", ["call", "teardown"]),
        ("broken", "failed", ["call"]),
        ("failed", "passed", []),
    ]
    for call, teardown, marked in rows:
        found = phases(monkeypatch, SETUP, ("call", call), ("teardown", teardown))

        assert [when for when, is_marked in found if is_marked] == marked, call


def test_repeated_test_is_marked_as_error_only_in_the_run_with_the_harness_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for second in ("failed", "passed"):
        found = phases(
            monkeypatch, SETUP, ("call", "broken"), TEARDOWN, SETUP, ("call", second), TEARDOWN
        )

        assert [is_marked for _, is_marked in found] == [False, True, True, False, False, False], (
            second
        )


def test_interleaved_reports_of_two_tests_are_marked_separately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two workers send the reports of their tests in any order."""
    calls = ("call", "broken"), ("call", "passed")

    found = phases(monkeypatch, SETUP, SETUP, *calls, TEARDOWN, TEARDOWN, tests="xy")
    late = phases(monkeypatch, SETUP, TEARDOWN, calls[0], SETUP, TEARDOWN, calls[1], tests="xy")

    assert [is_marked for _, is_marked in found] == [False, False, True, False, True, False]
    assert [is_marked for _, is_marked in late] == [False, False, True, False, True, False]


def test_harness_error_in_setup_is_not_marked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert phases(monkeypatch, ("setup", "broken"), TEARDOWN) == [
        ("setup", False),
        ("teardown", False),
    ]
