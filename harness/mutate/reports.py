"""Renders reports of mutation tests: as text, Markdown, JSON and SARIF."""

from __future__ import annotations

import html
import os
import re
from collections import defaultdict
from typing import TYPE_CHECKING
from urllib.parse import quote

from harness.mutate.operators import Operator
from harness.mutate.results import Outcome
from harness.visible_text import visible, visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.mutate.run import Report, Result

_SHOWN_TESTS = 3
_SHOWN_IN_MARKDOWN = 20
COLUMNS = (
    Outcome.KILLED, Outcome.TIMED_OUT, Outcome.SURVIVED, Outcome.NOT_REACHED, Outcome.NOT_TRIED
)  # fmt: skip
_TOP_LEVEL = "(top level)"
_BACKTICKS = re.compile("`{3,}")
FORMAT = 1
"""The version of the JSON report."""


def by_function(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Group results by script and function; keep the order of the results."""
    found: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        found[str(result.script), result.mutant.function or _TOP_LEVEL].append(result)
    return found


def summary(report: Report) -> str:
    """Return the counts of defects by outcome as one sentence."""
    if report.score is None:
        tried = "No defect was tried."
    else:
        tried = (
            f"{report.score:.0f} % of {report.tried} planted defects were noticed: "
            f"{report.count(Outcome.KILLED)} killed, {report.count(Outcome.TIMED_OUT)} timed out, "
            f"{report.count(Outcome.SURVIVED)} survived, {report.count(Outcome.NOT_REACHED)} not reached by "
            f"any of {report.tests} tests."
        )
    left = report.count(Outcome.NOT_TRIED)
    if left:
        tried += f" {left} were not tried for lack of time; the next run tries them."
    return tried


def remarks(report: Report) -> Iterator[str]:
    """Yield the remarks that a report shows after its summary."""
    if report.known_before:
        yield f"The outcome of {report.known_before} defects was known from an earlier run."
    if report.left_out:
        yield f"{report.left_out} tests on machines were left out; run these tests too with --machines."
    for test, why in report.unfit.items():
        yield f"'{visible_line(test)}' was left out: run alone, without a planted defect, {why}."


def render_text(report: Report) -> str:
    """Return a table of functions, and the diff and the tests of each surviving mutant."""
    return "\n".join(_text_lines(report)) + "\n"


def _text_lines(report: Report) -> Iterator[str]:
    for result in report.results:
        if result.outcome is Outcome.SURVIVED:
            yield f"survived: {place(result)}: {result.mutant.operator.what}"
            yield from (f"  {line}" for line in diff_of(report, result).splitlines()[2:])
            yield f"  run by {_tests(result)}"
            yield ""
    groups = by_function(report.results)
    names = [f"{script}: {visible_line(function)}" for script, function in groups]
    width = max(map(len, names), default=0)
    titles = [outcome.value for outcome in COLUMNS]
    yield f"{'':{width}}  {'  '.join(titles)}"
    for name, results in zip(names, groups.values(), strict=True):
        counts = [sum(each.outcome is outcome for each in results) for outcome in COLUMNS]
        cells = [
            f"{count or '-':>{len(title)}}" for count, title in zip(counts, titles, strict=True)
        ]
        yield f"{name:{width}}  {'  '.join(cells)}"
    yield ""
    yield summary(report)
    yield from remarks(report)


def place(result: Result) -> str:
    """Return the location of a mutant in a form that editors and terminals show as a link."""
    return f"{result.script}:{result.mutant.line}:{result.mutant.column}"


def diff_of(report: Report, result: Result) -> str:
    return visible(result.mutant.diff(report.texts[result.script], str(result.script)))


def _tests(result: Result) -> str:
    shown = ", ".join(f"'{visible_line(test)}'" for test in result.tests[:_SHOWN_TESTS])
    more = len(result.tests) - _SHOWN_TESTS
    return f"{shown} and {more} more" if more > 0 else shown


# --- Markdown ------------------------------------------------------------------------------------


def render_markdown(report: Report) -> str:
    """Render a summary for a pull request."""
    return "\n".join(_markdown_lines(report)) + "\n"


def _markdown_lines(report: Report) -> Iterator[str]:
    yield "## Mutation tests of shell code"
    yield ""
    yield summary(report)
    yield ""
    yield "| Function | Noticed | Survived | Not reached | Not tried |"
    yield "|---|---:|---:|---:|---:|"
    for (script, function), results in by_function(report.results).items():
        noticed = sum(each.outcome.is_noticed for each in results)
        others = [
            sum(each.outcome is outcome for each in results)
            for outcome in (Outcome.SURVIVED, Outcome.NOT_REACHED, Outcome.NOT_TRIED)
        ]
        cells = " | ".join(map(str, [noticed, *others]))
        # A cell ends at each '|', even in a code span.
        name = _code(f"{script}: {function}").replace("|", "\\|")
        yield f"| {name} | {cells} |"
    yield ""
    survivors = [each for each in report.results if each.outcome is Outcome.SURVIVED]
    for result in survivors[:_SHOWN_IN_MARKDOWN]:
        name = html.escape(visible_line(result.script.name))
        yield f"<details><summary>{name}:{result.mutant.line}: {result.mutant.operator.what}</summary>"
        yield ""
        text = "\n".join(diff_of(report, result).splitlines()[2:])
        fence = "`" * (max(map(len, _BACKTICKS.findall(text)), default=2) + 1)
        yield f"{fence}diff\n{text}\n{fence}"
        yield ""
        yield f"Run by {', '.join(_code(test) for test in result.tests[:_SHOWN_TESTS])}"
        yield "</details>"
        yield ""
    if len(survivors) > _SHOWN_IN_MARKDOWN:
        yield f"And {len(survivors) - _SHOWN_IN_MARKDOWN} more survived."
        yield ""
    yield from (f"* {_code(each)}" for each in remarks(report))


def _code(text: str) -> str:
    """Return text as a Markdown code span."""
    text = visible_line(text).replace("`", "'")
    return f"`{text}`"


# --- for programs ----------------------------------------------------------------------------------


def to_json(report: Report) -> dict[str, object]:
    """Return the whole report as values for JSON."""
    return {
        "format": FORMAT,
        "score": None if report.score is None else round(report.score, 2),
        "seconds": round(report.seconds, 3),
        "tests": report.tests,
        "tests_left_out": dict(report.unfit),
        "counts": {outcome.value: report.count(outcome) for outcome in Outcome},
        "mutants": [
            {
                "script": str(result.script),
                "function": result.mutant.function,
                "line": result.mutant.line,
                "last_line": result.mutant.last_line,
                "column": result.mutant.column,
                "operator": result.mutant.operator.value,
                "outcome": result.outcome.value,
                "noticed_by": result.noticed_by,
                "tests": list(result.tests),
                "diff": diff_of(report, result),
            }
            for result in report.results
        ],
    }


def to_sarif(report: Report, version: str) -> dict[str, object]:
    """Return surviving and unreached mutants as SARIF 2.1.0, which code reviews display."""
    shown = {Outcome.SURVIVED: "warning", Outcome.NOT_REACHED: "note"}
    results = [each for each in report.results if each.outcome in shown]
    used = [
        operator for operator in Operator if any(r.mutant.operator is operator for r in results)
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "harness mutate",
                        "version": version,
                        "rules": [
                            {
                                "id": each.value,
                                "shortDescription": {"text": f"Defect: {each.what}."},
                            }
                            for each in used
                        ],
                    }
                },
                "columnKind": "utf16CodeUnits",
                "results": [
                    {
                        "ruleId": each.mutant.operator.value,
                        "ruleIndex": used.index(each.mutant.operator),
                        "level": shown[each.outcome],
                        "message": {"text": _sarif_message(report, each)},
                        "locations": [
                            {
                                "physicalLocation": {
                                    "artifactLocation": {"uri": quote(os.fsencode(each.script))},
                                    "region": {
                                        "startLine": each.mutant.line,
                                        "endLine": each.mutant.last_line,
                                    },
                                }
                            }
                        ],
                        "partialFingerprints": {"mutant/v1": _fingerprint(report, each)},
                    }
                    for each in results
                ],
            }
        ],
    }


def _sarif_message(report: Report, result: Result) -> str:
    what = result.mutant.operator.what
    changes = "\n".join(
        line for line in diff_of(report, result).splitlines()[3:] if line.startswith(("-", "+"))
    )
    if result.outcome is Outcome.NOT_REACHED:
        return f"No test runs this line; a defect here ({what}) stays unnoticed.\n{changes}"
    return f"No test notices if {what}.\n{changes}\nThese tests run the line: {_tests(result)}."


def _fingerprint(report: Report, result: Result) -> str:
    """Return an id computed from a mutant's text; if the line moves, the id stays the same."""
    lines = report.texts[result.script].split(b"\n")
    line = lines[result.mutant.line - 1].strip().decode(errors="replace")
    new = result.mutant.new.decode(errors="replace")
    return visible_line(f"{result.mutant.function}/{result.mutant.operator.value}/{line}/{new}")
