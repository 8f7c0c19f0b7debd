"""Makes pytest's reports safe to show, and limits their size.

This module changes reports before the terminal, xdist and the JUnit file receive them, so that text
from guests, files and shell code can't control a terminal. Text that tests print under `-s` is not
changed.
"""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import pytest

from harness.errors import MESSAGE_BYTES, EvidencedError, errors_in
from harness.limits import CAPTURED_KIB, TRACE_KIB
from harness.plugin.node_ids import folder_name
from harness.provisioning.command import CommandError
from harness.visible_text import VisibleStream, is_longer, shortened, visible

if TYPE_CHECKING:
    import warnings
    from collections.abc import Callable, Generator, Sequence
    from typing import TextIO

_T = TypeVar("_T")

#: The limit of a message in a report. The report adds to the message the name of the error's class,
#: and the sentence that says where the evidence is.
_REPORTED_BYTES = MESSAGE_BYTES + 1024
#: The mark that pytest puts before the lines of a message, below the lines of source.
_MARK = "E "
#: The packages of pytest's classes for tracebacks and errors of collection, whose fields contain text.
_PARTS = ("_pytest._code.", "_pytest.reports")
#: The module of the class for the message and the values of a subtest.
_SUBTESTS = "_pytest.subtests"
_PLAIN = frozenset({int, float, bool, type(None)})
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


class ReportGate:
    """Escapes and shortens reports; keeps the whole text in a file of the test's evidence."""

    def __init__(self, config: pytest.Config, evidence: Path) -> None:
        self._config = config
        self._evidence = evidence

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Escape text outside of reports: headers, warnings, names of files, errors of plug-ins."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        # Reporters of other plug-ins draw on the terminal in their own way.
        if type(reporter) is pytest.TerminalReporter:
            # The reporter writes all its output through this writer, which has no public hook for a
            # filter.
            writer = reporter._tw  # noqa: SLF001
            stream = VisibleStream(writer._file, has_colours=writer.hasmarkup)  # noqa: SLF001
            writer._file = cast("TextIO", stream)  # noqa: SLF001

    @pytest.hookimpl(tryfirst=True)
    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Escape the id of a test whose file name is not UTF-8, since xdist and Allure can't encode this id."""
        shown = visible(item.nodeid)
        if shown == item.nodeid:
            return
        location = _changed(item.location, _clean)
        # There is no public way to change the id. Since pytest 9.1, the id is an object and not a
        # string.
        own = getattr(item, "_id", None)
        name, value = ("_nodeid", shown) if own is None else ("_id", type(own).parse(shown))
        setattr(item, name, value)
        vars(item)["location"] = location

    # This hook runs before other hooks read the message.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write a command's whole error to a file if the error's message shows only a part."""
        if call.excinfo is not None:
            for number, error in enumerate(errors_in(call.excinfo.value, EvidencedError), 1):
                if error.whole_text is None and is_longer(error.sentence, MESSAGE_BYTES):
                    with contextlib.suppress(OSError):
                        error.whole_text = self._write(
                            item.nodeid, f"error-{call.when}-{number}.txt", error.sentence
                        )
            for number, failed in enumerate(errors_in(call.excinfo.value, CommandError), 1):
                whole = failed.whole
                if whole != str(failed):
                    with contextlib.suppress(OSError):
                        failed.name_file(
                            str(
                                self._write(
                                    item.nodeid, f"command-{call.when}-{number}.txt", whole
                                )
                            )
                        )
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._escape(report, report.when)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._escape(report, "collect")

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Escape and shorten warnings, which xdist does not send as reports."""
        warning_message.filename = visible(warning_message.filename)
        warning = warning_message.message
        if isinstance(warning, Warning):
            warning.args = _changed(warning.args, _clean)
        text, kind = str(warning), warning_message.category
        is_changed = _clean(text, _REPORTED_BYTES) != text
        # xdist's controller, which imports no tests, makes an object of the warning's class.
        if hasattr(self._config, "workerinput") and self._is_of_project(kind):
            text, is_changed = f"{kind.__name__}: {text}", True
            warning_message.category = pytest.PytestWarning
        if is_changed:
            warning_message.message = pytest.PytestWarning(_clean(text, _REPORTED_BYTES))

    def _is_of_project(self, kind: type[object]) -> bool:
        """Return whether the class `kind` is defined in the tests' project, which is not installed."""
        file = Path(getattr(sys.modules.get(kind.__module__), "__file__", None) or "/")
        return "site-packages" not in file.parts and file.is_relative_to(self._config.rootpath)

    def _escape(self, report: pytest.TestReport | pytest.CollectReport, when: str) -> None:
        node_id = visible(report.nodeid)
        if node_id != report.nodeid:
            report.nodeid = node_id
        for name, value in vars(report).items():
            is_other = name in ("longrepr", "sections") or name.startswith("_")
            # Most values are short words of pytest, which need no change.
            if not is_other and not _is_plain(value):
                vars(report)[name] = _changed(value, _clean)
        if isinstance(report, pytest.TestReport):
            # xdist ends the run at an object that it can't send, such as a path.
            report.user_properties = [
                (name, value if isinstance(value, str) or _is_plain(value) else _text(value))
                for name, value in report.user_properties
            ]
        whole = ""
        if report.longrepr is not None and _is_long(report.longrepr):
            whole = self._keep(report.nodeid, f"message-{when}.txt", report.longreprtext)
        if report.longrepr is not None:
            report.longrepr = _changed(report.longrepr, partial(_clean, rest=whole))
        report.sections = [
            (visible(title), self._section(report.nodeid, title, content))
            for title, content in report.sections
        ]

    def _section(self, node_id: str, title: str, content: str) -> str:
        if not is_longer(content, CAPTURED_KIB.bytes):
            return visible(content)
        name = _NOT_IN_NAMES.sub("-", title.lower()).strip("-")
        rest = self._keep(node_id, f"{name}.txt", content)
        return _clean(content, CAPTURED_KIB.bytes, rest)

    def _keep(self, node_id: str, name: str, text: str) -> str:
        """Keep a text in a file, and return a sentence that names the file."""
        try:
            return f"The whole text is in '{self._write(node_id, name, text)}'."
        except OSError as error:
            return f"The whole text could not be kept in '{self._evidence}': {error.strerror}."

    def _write(self, node_id: str, name: str, text: str) -> Path:
        path = self._evidence / folder_name(node_id) / name
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(text, errors="backslashreplace")
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        return path


def _is_plain(value: object) -> bool:
    """Return whether a part of a report is short and printable, so that it needs no change."""
    kind = type(value)
    if kind is str:
        text = cast("str", value)
        return len(text) <= _REPORTED_BYTES and text.isascii() and text.isprintable()
    if kind is dict:
        keywords = cast("dict[object, object]", value)
        return all(map(_is_plain, keywords)) and all(map(_is_plain, keywords.values()))
    if kind is list or kind is tuple:
        return all(map(_is_plain, cast("Sequence[object]", value)))
    return kind in _PLAIN


def _text(value: object) -> str:
    return _clean(str(value), _REPORTED_BYTES)


def _is_long(longrepr: object) -> bool:
    """Return whether any text of a traceback is longer than its limit."""
    found = False

    def look(text: str, most: int) -> str:
        nonlocal found
        found = found or is_longer(text, most)
        return text

    _changed(longrepr, look)
    return found


def _clean(text: str, most: int, rest: str = "") -> str:
    # Shorten before and after escaping: escaped text is longer than the original, and escaping
    # takes time.
    return shortened(visible(shortened(text, most, rest=rest)), most, rest=rest)


def _changed(value: _T, change: Callable[[str, int], str]) -> _T:
    """Return a part of a report with `change` applied to each string.

    `change` is called with each string, and the number of bytes that the string may have. Objects
    of pytest's tracebacks are changed in place.
    """
    changed: object = value
    match value:
        case str():
            changed = change(value, _REPORTED_BYTES)
        case list() | tuple() if type(value) in (list, tuple):
            changed = type(value)(_changed(each, change) for each in value)
        case dict():
            changed = {
                _changed(key, change): _changed(each, change) for key, each in value.items()
            }
        case _ if is_dataclass(value) and type(value).__module__ == _SUBTESTS:
            # The object is frozen, so it is changed in place: a new object would quote the values a
            # second time.
            for each in fields(value):
                object.__setattr__(value, each.name, _changed(getattr(value, each.name), change))
        case _ if type(value).__module__.startswith(_PARTS):
            # The lines of an error without a traceback are its message.
            most = _REPORTED_BYTES if getattr(value, "style", "") == "value" else TRACE_KIB.bytes
            for name, part in vars(value).items():
                is_lines = name == "lines" and isinstance(part, list)
                vars(value)[name] = (
                    _lines(part, most, change) if is_lines else _changed(part, change)
                )
        case _:
            pass
    return cast("_T", changed)


def _lines(lines: list[str], most: int, change: Callable[[str, int], str]) -> list[str]:
    """Apply `change` to the lines of a traceback entry; source lines and message have separate limits."""
    first = next((at for at, line in enumerate(lines) if line.startswith(_MARK)), len(lines))
    parts = ((lines[:first], most), (lines[first:], _REPORTED_BYTES))
    return [
        line
        for part, limit in parts
        if part
        for line in change("\n".join(part), limit).split("\n")
    ]
