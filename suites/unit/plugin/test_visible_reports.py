"""The gate that escapes and shortens the text of pytest's reports."""

from __future__ import annotations

import builtins
import dataclasses
import errno
import io
import os
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest
from _pytest.reports import CollectErrorRepr
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import MESSAGE_BYTES, ExpectationError
from harness.plugin.visible_reports import ReportGate
from harness.provisioning.command import CommandError, CommandResult
from harness.visible_text import visible

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x00\x85\u202e\udce9\ufffe <script>"
#: An error without a traceback, whose source pytest would parse.
FAILURE = pytest.fail.Exception("It failed.", pytrace=False)


def a_call(error: BaseException) -> pytest.CallInfo[None]:
    def fail() -> None:
        raise error

    return pytest.CallInfo.from_call(fail, when="call")


def a_report(
    error: BaseException, request: pytest.FixtureRequest, **fields: object
) -> pytest.TestReport:
    """Return the report of a test that raised `error` in its body."""
    report = pytest.TestReport.from_item_and_call(request.node, a_call(error))
    vars(report).update(fields)
    return report


@pytest.fixture
def gate(pytestconfig: pytest.Config, tmp_path: Path) -> ReportGate:
    return ReportGate(pytestconfig, tmp_path / "evidence")


def test_control_characters_are_escaped_in_each_part_of_a_report(
    gate: ReportGate, request: pytest.FixtureRequest
) -> None:
    for evil in (EVIL, "\x1b]0;owned\x07"):
        report = a_report(
            AssertionError(f"\x1b[8mhidden {evil}"),
            request,
            sections=[(f"Captured {evil}", evil)],
            user_properties=[
                ("behaviour", evil),
                (evil, 5),
                ("list", [evil]),
                ("path", Path(f"/{evil}")),
            ],
            keywords={evil: 1},
            location=(f"{evil}.py", 1, evil),
            of_a_plugin={"plain": evil},
        )
        report.nodeid = f"t.py::t[{evil}]"

        gate.pytest_runtest_logreport(report)

        dicts = report.keywords, vars(report)["of_a_plugin"]
        shown = "\n".join(map(str, (report.longreprtext, report.nodeid, *dicts)))
        shown += "".join(part for pair in report.sections for part in pair)
        shown += "".join(map(str, report.user_properties))
        # str() of a dict or a tuple escapes these values already, so join the values themselves.
        values = [*report.keywords, vars(report)["of_a_plugin"]["plain"], *report.location]
        values += [part for pair in report.user_properties for part in pair[:1]]
        shown += "".join(map(str, values))
        assert "\\x1b[8mhidden" in shown
        assert visible(evil) in shown
        assert shown.replace("\n", "").isprintable()
        assert report.user_properties[1][1] == 5
        assert report.user_properties[3][1] == f"/{visible(evil)}"


def test_control_characters_are_escaped_in_the_message_and_values_of_a_subtest(
    gate: ReportGate, request: pytest.FixtureRequest
) -> None:
    # Pytest before version 9 lacks this class.
    context = dataclasses.make_dataclass(
        "SubtestContext",
        ["msg", "kwargs"],
        namespace={"__module__": "_pytest.subtests"},
        frozen=True,
        slots=True,
    )
    report = a_report(FAILURE, request, context=context(EVIL, {EVIL: [EVIL]}))

    gate.pytest_runtest_logreport(report)

    shown = visible(EVIL)
    assert vars(report)["context"] == context(shown, {shown: [shown]})


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("y\n" * 5000),
        AssertionError("\0" * 30_000),
        pytest.fail.Exception("y" * 30_000, pytrace=False),
    ],
    ids=["lines", "zeros", "fail"],
)
def test_long_message_is_shortened_and_its_whole_text_is_written_to_a_file(
    gate: ReportGate, request: pytest.FixtureRequest, tmp_path: Path, error: BaseException
) -> None:
    report = a_report(error, request)

    gate.pytest_runtest_logreport(report)

    assert len(report.longreprtext) < 20_000
    assert len(report.longrepr.reprcrash.message) < 10_000  # type: ignore[union-attr]
    (file,) = (tmp_path / "evidence").glob("*/message-call.txt")
    assert file.stat().st_size > 20_000
    assert f"The whole text is in '{file}'." in report.longreprtext


def test_error_of_a_collection_is_escaped_and_its_length_is_limited(gate: ReportGate) -> None:
    error = CollectErrorRepr(f"{EVIL} " * 1000)
    report = pytest.CollectReport("test_a.py", "failed", error, [])

    gate.pytest_collectreport(report)

    shown = report.longreprtext
    assert len(shown) < 2 * MESSAGE_BYTES
    assert shown.replace("\n", "").isprintable()


def test_report_of_an_exception_group_has_a_size_limit(
    gate: ReportGate, request: pytest.FixtureRequest
) -> None:
    kind = getattr(builtins, "ExceptionGroup", None)
    if kind is None:
        pytest.skip("Python 3.10 has no groups of exceptions")
    report = a_report(kind("y" * 100_000, [ValueError("z" * 300_000)]), request)

    gate.pytest_runtest_logreport(report)

    assert len(report.longreprtext) < 200_000


def test_error_of_a_failed_command_has_the_path_of_the_file_with_its_whole_output(
    gate: ReportGate, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    output = "".join(f"line {number}\n" for number in range(1500))
    result = CommandResult(argv=("make",), exit_code=2, stdout=output, stderr="")
    error = CommandError("The build", result)
    next(gate.pytest_runtest_makereport(request.node, a_call(error)))

    (file,) = (tmp_path / "evidence").glob("*/command-call-1.txt")
    assert output.strip() in file.read_text()
    assert f"The whole output is in '{file}'." in str(error)
    assert "line 1499" in str(error)
    assert len(str(error)) < MESSAGE_BYTES


def test_shortened_error_has_the_path_of_a_file_with_the_whole_text(
    gate: ReportGate, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    error, cause = (ExpectationError(f"{letter} " * 10_000) for letter in "yz")
    error.__cause__ = cause
    next(gate.pytest_runtest_makereport(request.node, a_call(error)))

    for number, each in enumerate((error, cause), start=1):
        (path,) = (tmp_path / "evidence").glob(f"*/error-call-{number}.txt")
        assert path.read_text() == each.sentence
        assert f"The whole text is in '{path}'." in str(each)


def test_message_file_that_can_not_be_written_is_reported_and_leaves_no_partial_file(
    gate: ReportGate,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = a_report(AssertionError("y" * 30_000), request)

    def fill(path: Path, text: str, **_: object) -> NoReturn:
        path.write_bytes(text[:9].encode())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fill)
        gate.pytest_runtest_logreport(report)

    assert "The whole text could not be kept in" in report.longreprtext
    assert not [path for path in (tmp_path / "evidence").rglob("*") if path.is_file()]


def test_control_characters_of_a_warning_are_escaped_and_its_length_is_limited(
    gate: ReportGate,
) -> None:
    rows: list[str | Warning] = [f"{EVIL}.", UserWarning(EVIL), UserWarning("y" * 100_000)]
    for message in rows:
        warning = warnings.WarningMessage(message, UserWarning, f"/{EVIL}.py", 1)

        gate.pytest_warning_recorded(warning)

        shown = f"{warning.filename}{warning.message}".replace("\n", "")
        assert shown.isprintable()
        assert "\\x1b]0;owned\\x07" in shown
        assert len(shown) < 2 * MESSAGE_BYTES


def test_captured_output_is_shortened_and_saved_whole_in_a_file(
    gate: ReportGate,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_CAPTURED_KIB", "2")
    report = a_report(FAILURE, request, sections=[("Captured stdout call", "é" * 3000)])

    gate.pytest_runtest_logreport(report)

    ((_, content),) = report.sections
    (path,) = (tmp_path / "evidence").glob("*/captured-stdout-call.txt")
    assert path.read_text() == "é" * 3000
    assert len(content.encode()) <= 2048
    assert (
        f"[6000 bytes in all; the middle part is left out here. The whole text is in '{path}'.]"
        in content
    )


def test_short_report_is_unchanged(
    gate: ReportGate, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    report = a_report(AssertionError("expected 'é☃'\n  1\t2"), request)
    before = report.longreprtext

    gate.pytest_runtest_logreport(report)

    assert report.longreprtext == before
    assert not (tmp_path / "evidence").exists()


def test_report_that_is_escaped_twice_equals_a_report_that_is_escaped_once(
    gate: ReportGate, request: pytest.FixtureRequest
) -> None:
    """A report passes the gate in the xdist worker and in the controller."""
    report = a_report(AssertionError(EVIL * 1000), request)
    gate.pytest_runtest_logreport(report)
    before = report.longreprtext

    gate.pytest_runtest_logreport(report)

    assert report.longreprtext == before


def test_control_characters_are_escaped_in_terminal_text_outside_of_reports(
    tmp_path: Path,
) -> None:
    """Such text is, for example, a warning or the name of a file."""
    file = io.StringIO()
    writer = SimpleNamespace(_file=file, hasmarkup=True)
    reporter = object.__new__(pytest.TerminalReporter)
    reporter._tw = writer  # type: ignore[assignment]
    manager = SimpleNamespace(getplugin=lambda _: reporter)
    config = cast("pytest.Config", SimpleNamespace(pluginmanager=manager))

    ReportGate(config, tmp_path).pytest_sessionstart()
    writer._file.write(f"\r\x1b[31mred\x1b[0m {EVIL}\n")

    assert file.getvalue().startswith("\r\x1b[31mred\x1b[0m \\x1b]0;owned\\x07\\x1b[2J")


@given(text=st.text())
def test_report_of_any_text_is_printable_and_valid_xml(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    gate = ReportGate(request.config, tmp_path_factory.getbasetemp())
    error = pytest.fail.Exception(text, pytrace=False)
    report = a_report(error, request, sections=[(text, text)], user_properties=[(text, text)])
    report.nodeid = text

    gate.pytest_runtest_logreport(report)

    element = ET.Element("case", name=report.nodeid)
    element.text = report.longreprtext
    for name, value in (*report.sections, *report.user_properties):
        ET.SubElement(element, "property", name=name, value=str(value))
    ET.fromstring(ET.tostring(element, "utf-8"))  # noqa: S314 - just written
    assert "".join(element.itertext()).replace("\n", "").replace("\t", "").isprintable()
