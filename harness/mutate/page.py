"""Renders the report of mutation tests as an HTML page that shows scripts with their mutants."""

from __future__ import annotations

import html
from collections import defaultdict
from typing import TYPE_CHECKING

from harness.mutate.reports import COLUMNS, by_function, diff_of, remarks, summary
from harness.mutate.results import Outcome
from harness.visible_text import visible, visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.mutate.run import Report, Result

_STYLE = """
:root { color-scheme: light dark; --line: #d9d9d9; --bad: #ffe3d3; --none: #ececec; --good: #e2f2e4; }
@media (prefers-color-scheme: dark) { :root { --line: #3d434b; --bad: #55301d; --none: #303338; --good: #1f3a25; } }
body { margin: 0 auto; max-width: 1100px; padding: 8px; font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.2rem; } h2 { font-size: 1rem; }
table { border-collapse: collapse; } td, th { padding: 2px 8px; border-bottom: 1px solid var(--line); text-align: left; }
td.n { text-align: right; } pre, code { font: 12px/1.5 ui-monospace, monospace; }
.source { display: block; overflow-x: auto; } .source > div { display: flex; white-space: pre; }
.source .n { flex: 0 0 5ch; text-align: right; padding-right: 1ch; opacity: .6; user-select: none; }
.survived { background: var(--bad); } .unreached { background: var(--none); } .noticed { background: var(--good); }
details { margin: 0 0 4px 6ch; } details pre { overflow-x: auto; border-left: 3px solid var(--line); padding-left: 8px; }
"""


def render_page(report: Report) -> str:
    """Return the complete HTML page."""
    body = "\n".join(_body(report))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Mutation tests of shell code</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _body(report: Report) -> Iterator[str]:
    yield "<h1>Mutation tests of shell code</h1>"
    yield f"<p>{_text(summary(report))}</p>"
    yield from (f"<p>{_text(each)}</p>" for each in remarks(report))
    yield "<table><tr><th>Function</th>"
    yield "".join(f"<th>{outcome.value}</th>" for outcome in COLUMNS) + "</tr>"
    for (script, function), results in by_function(report.results).items():
        counts = [sum(each.outcome is outcome for each in results) for outcome in COLUMNS]
        cells = "".join(f'<td class="n">{count or ""}</td>' for count in counts)
        yield f"<tr><td><code>{_text(f'{script}: {function}')}</code></td>{cells}</tr>"
    yield "</table>"
    for path, content in report.texts.items():
        yield f"<h2><code>{_text(str(path))}</code></h2>"
        yield '<div class="source"><code>'
        by_line: dict[int, list[Result]] = defaultdict(list)
        for result in report.results:
            if result.script == path:
                by_line[result.mutant.line].append(result)
        for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
            yield from _line(report, number, line, by_line[number])
        yield "</code></div>"


def _line(report: Report, number: int, line: str, results: list[Result]) -> Iterator[str]:
    outcomes = {each.outcome for each in results}
    kind = ""
    if Outcome.SURVIVED in outcomes:
        kind = "survived"
    elif Outcome.NOT_REACHED in outcomes:
        kind = "unreached"
    elif outcomes & {Outcome.KILLED, Outcome.TIMED_OUT}:
        kind = "noticed"
    yield f'<div class="{kind}" id="L{number}"><span class="n">{number}</span><span>{html.escape(visible(line))}</span></div>'
    for each in results:
        if each.outcome is Outcome.SURVIVED:
            change = "\n".join(diff_of(report, each).splitlines()[3:])
            tests = "".join(f"<li><code>{_text(test)}</code></li>" for test in each.tests)
            yield (
                f"<details><summary>survived: {_text(each.mutant.operator.what)}</summary>"
                f"<pre>{html.escape(change)}</pre>"
                f"<p>These tests run the line:</p><ul>{tests}</ul></details>"
            )


def _text(text: str) -> str:
    return html.escape(visible_line(text))
