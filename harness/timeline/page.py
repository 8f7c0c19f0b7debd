"""The page of a timeline: one complete HTML file, with the picture and all times as a table."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from harness.errors import RequirementError
from harness.plots import DARK, LIGHT, picture
from harness.timeline import seconds
from harness.timeline.drawing import render_timelines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.timeline import Timeline

#: The page in the evidence of a machine whose test failed.
PAGE = "timeline.html"

_STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --muted: #5c6066; --line: #d9d9d9; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --muted: #a3a9b1; --line: #3d434b;
  --page: #15181c; } }
body { margin: 0 auto; max-width: 1000px; padding: 8px; color: var(--text); background: var(--page);
  font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.2rem; } h2 { font-size: 1rem; } img { width: 100%; height: auto; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 12px; }
td, th { padding: 2px 8px; border-bottom: 1px solid var(--line); text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td { overflow-wrap: anywhere; } td:nth-child(3), td:nth-child(6) { min-width: 14em; }
td:nth-child(4) { white-space: nowrap; }
tr.critical td:nth-child(3) { font-weight: 600; color: #D55E00; }
.muted { color: var(--muted); }
"""


def render_page(timelines: Sequence[Timeline]) -> str:
    """Render the page; without matplotlib, the page has an error message in place of the picture."""
    titles = " and ".join(each.title for each in timelines)
    parts = [f"<h1>Timeline of {html.escape(titles)}</h1>", _picture(timelines, titles)]
    for timeline in timelines:
        parts += _table(timeline, has_title=len(timelines) > 1)
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Timeline of {html.escape(titles)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _picture(timelines: Sequence[Timeline], titles: str) -> str:
    try:
        light, dark = (render_timelines(timelines, scheme) for scheme in (LIGHT, DARK))
    except RequirementError as error:
        return f'<p class="muted">{html.escape(str(error))}</p>'
    return picture(light, dark, f"Timeline of {titles}")


def _table(timeline: Timeline, *, has_title: bool) -> Iterator[str]:
    if has_title:
        yield f"<h2>{html.escape(timeline.title)}</h2>"
    for gap in timeline.gaps:
        yield f"<p><strong>Not read: {html.escape(gap.what)}.</strong> {html.escape(gap.reason)}</p>"
    for moment in timeline.moments:
        yield f'<p class="muted">{seconds(moment.at_s)}: {html.escape(moment.words)}</p>'
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(
        f"<th>{head}</th>"
        for head in (
            "Begin",
            "Duration",
            "What",
            "Kind",
            "State",
            "Waited last for",
            "For how long",
        )
    )
    yield "</tr></thead><tbody>"
    for span in timeline.spans:
        cells = (
            ("n", seconds(span.start_s)),
            ("n", seconds(span.duration_s)),
            ("", span.name),
            ("", f"{span.lane.value}{', critical' if span.is_critical else ''}"),
            ("", span.state.value + (f": {span.detail}" if span.detail else "")),
            ("", ", ".join(span.blockers)),
            ("n", seconds(span.blocked_s) if span.blockers else ""),
        )
        row = "".join(f'<td class="{kind}">{html.escape(text)}</td>' for kind, text in cells)
        yield f"<tr{' class=critical' if span.is_critical else ''}>{row}</tr>"
    yield "</tbody></table></div>"
