"""Prints why tests failed or were skipped, since pytest's summary has only truncated lines."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from harness.errors import MESSAGE_BYTES, EvidencedError, RequirementError, errors_in
from harness.visible_text import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pytest

_CAUSE = "cause"
#: The beginnings of an error's lines about the failed command and its output.
_OF_COMMAND = ("command: ", "stderr: ")
_SILENT = "stderr: -"
#: The largest number of these lines that is shown; a message may quote output with similar lines.
_COMMAND_LINES = 10
#: The title of the report section that contains the lines of `_OF_COMMAND`.
_WHY = "why"
_MISSING = "missing_requirement"
#: The width of the summary's lines, which fit a terminal.
_COLUMNS = 80
_CAUSE_LINES = 3
#: The number of entries shown from a list of findings, such as the differences between two states.
_FINDINGS = 3


def note_reason(report: pytest.TestReport, error: BaseException, folders: Iterable[Path]) -> None:
    """Add to a test's report why the test failed, or which requirement the host lacks."""
    if report.skipped and isinstance(error.__context__, RequirementError):
        report.user_properties.append((_MISSING, str(error)))
    if not report.failed:
        return
    named, causes = _causes(error, list(folders))
    for cause in causes:
        report.user_properties.append((_CAUSE, cause))
    if causes:
        report.sections.append((_WHY, "\n".join(causes)))
    # The short summary shows the first line of this message, and JUnit the whole message.
    crash = getattr(report.longrepr, "reprcrash", None)
    if named is not None and crash is not None:
        crash.message = f"{named}\n{crash.message}"


def write_causes(
    terminalreporter: pytest.TerminalReporter, reports: Iterable[pytest.TestReport]
) -> None:
    """Print the cause of each failure, since pytest's summary truncates lines before the cause."""
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
                # A path that is broken into two lines could not be copied.
                break_on_hyphens=False,
                max_lines=_CAUSE_LINES,
                placeholder=" …",
            ):
                terminalreporter.write_line(line)


def write_missing(terminalreporter: pytest.TerminalReporter) -> None:
    """List the requirements that this host lacks, since the count of skipped tests does not show them."""
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


def _causes(error: BaseException, folders: Sequence[Path]) -> tuple[str | None, list[str]]:
    """Return the known cause of a failure, or None, and a list of explanations.

    The explanations are, in this order: the causes that the evidence shows, the first line of the
    error, and the error's lines about the failed command. If the error has no lines about a failed
    command, the first entries of the error's list of findings are used instead. For an error in the
    test's own code, which pytest shows well, only known causes are returned.
    """
    own = next(errors_in(error, EvidencedError), None)
    if own is None and not folders:
        return None, []
    from harness.evidence.causes import explain, find_causes  # noqa: PLC0415 - only for machines

    named: str | None = None
    sentences: list[str] = []
    # Reading damaged evidence may raise any exception, which would end the whole run in a hook.
    with contextlib.suppress(Exception):
        found = find_causes(
            "\n".join(map(str, [error, *errors_in(error, EvidencedError)])), folders
        )
        for each in found:
            named = named or each.sentence()
            sentences += [each.sentence(), each.remedy]
        for folder in folders if own is not None else ():
            sentences += explain(folder, is_named=bool(found))
    if own is not None:
        first, *block = own.sentence.splitlines() or [""]
        said = [
            line for line in block if line.startswith(_OF_COMMAND) and line.rstrip(".") != _SILENT
        ][:_COMMAND_LINES]
        # The lines of a list of findings begin with spaces.
        said = said or [line for line in block if line.startswith("  ")][:_FINDINGS]
        sentences += [first, *said]
    return named, [shortened(each, MESSAGE_BYTES) for each in dict.fromkeys(sentences)]


def hide_own_frames() -> None:
    """Hide the harness's stack frames in tracebacks of EvidencedError; `--full-trace` shows these frames."""

    def is_explained(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
        return isinstance(excinfo.value, EvidencedError)

    for name, module in list(sys.modules.items()):
        # Some frames between two frames of the harness are frames of contextlib.
        if name.startswith("harness.") or name == "contextlib":
            # pytest looks for this name in the globals of each frame.
            module.__dict__["__tracebackhide__"] = is_explained
