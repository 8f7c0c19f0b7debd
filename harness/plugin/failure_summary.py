"""Why tests failed, or were skipped, as pytest's summary says it in lines that are not cut."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from harness.errors import EvidencedError, RequirementError, evidenced_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

_CAUSE = "cause"
_MISSING = "missing_requirement"
#: Lines of the summary fit a terminal.
_COLUMNS = 80
_CAUSE_LINES = 3


def note_reason(report: pytest.TestReport, error: BaseException, folders: Iterable[Path]) -> None:
    """Note in a test's report why it failed, by its error and evidence, or what the host lacks."""
    if report.skipped and isinstance(error.__context__, RequirementError):
        report.user_properties.append((_MISSING, str(error)))
    if report.failed:
        for sentence in _causes(error, folders):
            report.user_properties.append((_CAUSE, sentence))


def write_causes(
    terminalreporter: pytest.TerminalReporter, reports: Iterable[pytest.TestReport]
) -> None:
    """Name the cause of each failure, since pytest cuts its lines before they come to it."""
    for report in reports:
        causes = [value for name, value in report.user_properties if name == _CAUSE]
        if causes:
            short = report.nodeid.rpartition("::")[2]
            terminalreporter.write_line(f"why {short}:"[:_COLUMNS])
        for cause in causes:
            for line in textwrap.wrap(
                str(cause),
                _COLUMNS,
                initial_indent="  ",
                subsequent_indent="    ",
                max_lines=_CAUSE_LINES,
                placeholder=" …",
            ):
                terminalreporter.write_line(line)


def write_missing(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what this host lacks: nobody reads that in the count of skipped tests."""
    if set(terminalreporter.config.option.reportchars) & {"s", "a", "A"}:
        return
    missing = Counter(
        str(value)
        for report in terminalreporter.stats.get("skipped", [])
        for name, value in getattr(report, "user_properties", ())
        if name == _MISSING
    )
    for reason, count in missing.items():
        terminalreporter.write_line(f"skipped {count}: {reason}")


def _causes(error: BaseException, folders: Iterable[Path]) -> list[str]:
    """Return why a test failed: what the evidence shows of it, then the first line of the error."""
    sentences: list[str] = []
    if next(evidenced_in(error), None) is None:
        # An error of the test itself, which pytest shows well.
        return sentences
    from harness.evidence.causes import explain  # noqa: PLC0415 - runs without machines need none

    for folder in folders:
        # An exception from a hook would end the whole run.
        with contextlib.suppress(Exception):
            sentences += explain(folder)
    first = next(evidenced_in(error))
    return [*dict.fromkeys(sentences), first.sentence.partition("\n")[0]]


def hide_own_frames() -> None:
    """Hide the frames of the harness below an error that explains itself; `--full-trace` shows them."""

    def is_explained(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
        return isinstance(excinfo.value, EvidencedError)

    for name, module in list(sys.modules.items()):
        # contextlib: between two frames of the harness.
        if name.startswith("harness.") or name == "contextlib":
            # pytest looks for this name in the globals of each frame.
            module.__dict__["__tracebackhide__"] = is_explained
