"""Writes the report of a run: one HTML page, Markdown for a pull request, CSV and JSON, and the plots."""

from __future__ import annotations

import csv
import html
import io
import json
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.estimates import reached_confidence
from harness.bench.time_to_gpu.figures import conclusions, interval, percent, to_document
from harness.bench.time_to_gpu.plots import plots_of, render
from harness.bench.time_to_gpu.samples import PAYLOADS, TRIMS, Experiment, Mode
from harness.errors import naming
from harness.plots import DARK, LIGHT, picture

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.bench.time_to_gpu.figures import Figures, ModeFigures
    from harness.bench.time_to_gpu.plots import Plot

_EMULATED = (
    "The processor was emulated (TCG). Seconds of an emulated node say nothing about a real node: read the "
    "ratios. Emulation slows down the processor but not the network, so pulls are a smaller share of the "
    "wait than on a real node."
)
_STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --muted: #5c6066; --line: #d9d9d9; --page: #ffffff;
  --panel: #f5f6f8; --mark: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --muted: #a3a9b1; --line: #3d434b;
  --page: #15181c; --panel: #1e2329; --mark: #7ab8f5; } }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; color: var(--text); background: var(--page);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; margin: .5rem 0; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.scroll { overflow-x: auto; } .note { background: var(--panel); border-left: 4px solid var(--mark);
  padding: .6rem .9rem; margin: 1rem 0; }
figure { margin: 1rem 0 2rem; } figure img { width: 100%; height: auto; display: block; }
figcaption, .muted { color: var(--muted); font-size: .9rem; } code { background: var(--panel); padding: 0 .2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
"""

#: A table: head, rows, and the indices of the columns that contain numbers.
Table = tuple[tuple[str, ...], list[tuple[str, ...]], frozenset[int]]


def write_report(
    figures: Figures,
    folder: Path,
    *,
    has_plots: bool = True,
    reference_s: float | None = None,
    ready_s: float = 0.0,
) -> Mapping[str, Path]:
    """Write all forms of the report into `folder`; return the files' paths by name.

    `reference_s` is the time of a build at boot on a real node. If `reference_s` is given, the
    report has the advice both as ratios and in seconds. The advice in seconds includes `ready_s`,
    the time until a new node is ready.

    Raises RequirementError if plots are wanted and matplotlib is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plots = plots_of(figures) if has_plots else []
    contents: dict[str, bytes] = {
        "report.json": (json.dumps(to_document(figures), indent=2) + "\n").encode(),
        "report.csv": render_csv(figures).encode(),
        "report.md": render_markdown(figures, reference_s=reference_s, ready_s=ready_s).encode(),
    }
    for plot in plots:
        for form in ("svg", "png"):
            contents[f"{plot.name}.{form}"] = render(plot, figures, LIGHT, form=form)
    contents["report.html"] = render_page(
        figures, plots, reference_s=reference_s, ready_s=ready_s
    ).encode()
    written = {}
    for name, content in contents.items():
        path = folder / name
        part = path.with_name(f".{name}.part")
        with naming(path):
            part.write_bytes(content)
            part.replace(path)
        written[name] = path
    return written


def modes_table(figures: Figures) -> Table:
    """Return the table of waits by mode."""
    is_emulated = figures.benchmark.conditions.is_emulated
    head = ("experiment", "mode", "of the build at boot", "interval", "n", "published", "wait")
    rows: list[tuple[str, ...]] = [
        (
            experiment.value,
            each.mode.value,
            _ratio_cell(each),
            "" if each.ratio is None else interval(each.ratio),
            str(each.wait.n),
            ", ".join(
                f"{percent(one.ratio)} ({one.seconds:g} s of {one.baseline_s:g} s)"
                for one in each.published
            )
            or "none",
            f"{each.wait.value:.1f} s{' emulated' if is_emulated else ''}",
        )
        for experiment, modes in figures.experiments.items()
        for each in modes
    ]
    return head, rows, frozenset({2, 3, 4, 6})


def _ratio_cell(figures: ModeFigures) -> str:
    if figures.ratio is not None:
        return percent(figures.ratio.value)
    return "1 (baseline)" if figures.mode is Mode.BUILD else "no build measured"


def savings_table(figures: Figures) -> Table:
    head = ("trim", "what it does", "saved share", "interval", "n", "claimed")
    rows: list[tuple[str, ...]] = [
        (
            each.trim.value.removeprefix("without-"),
            TRIMS[each.trim],
            percent(each.share.value),
            interval(each.share),
            str(each.share.n),
            "yes" if each.is_claimed else "no",
        )
        for each in figures.savings
    ]
    return head, rows, frozenset({2, 3, 4})


def path_table(figures: Figures) -> Table:
    """Return the table of the largest parts of the wait, by mode."""
    head = (
        "mode",
        "compilation",
        "interval",
        "n",
        "largest parts of the wait",
        "units ready after",
    )
    rows: list[tuple[str, ...]] = [
        (
            each.mode.value,
            "none" if each.compile_share is None else percent(each.compile_share.value),
            "" if each.compile_share is None else interval(each.compile_share),
            "" if each.compile_share is None else str(each.compile_share.n),
            ", ".join(
                f"{name} {percent(part.value)}" for name, part in list(each.parts.items())[:5]
            ),
            ", ".join(f"{name} {percent(part.value)}" for name, part in each.units.items())
            or "none",
        )
        for each in figures.experiments.get(Experiment.SCALE_UP, ())
    ]
    return head, rows, frozenset({1, 2, 3})


def advice_table(figures: Figures, reference_s: float | None, ready_s: float) -> Table:
    """Return the advice as multiples of the time of a build at boot.

    If `reference_s` is given, each cell has a time in seconds in addition to the multiple.
    """
    in_seconds = reference_s is not None
    head = ("mode", "maxNodeProvisionTime", "unneededTime", "scaleDownDelayAfterAdd", "n")
    rows: list[tuple[str, ...]] = []
    for mode, advice in figures.advice.items():
        times = (advice.max_node_provision_time, advice.unneeded_time, advice.delay_after_add)
        cells = [
            f"{time:.2f} x"
            + (f" = {ready_s + time * (reference_s or 0):.0f} s" if in_seconds else "")
            for time in times
        ]
        rows.append((mode.value, *cells, str(advice.n)))
    return head, rows, frozenset({1, 2, 3, 4})


def _conditions(figures: Figures) -> Iterator[tuple[str, str]]:
    given = figures.benchmark.conditions
    yield (
        "measured",
        f"{given.started_at}, in {given.duration_s / 60:.1f} minutes"
        + (" (quick)" if given.is_quick else ""),
    )
    yield "accelerator", given.accelerator
    if given.host:
        yield "host", given.host
    yield "image", f"{given.image}, kernels {', '.join(given.kernels)}"
    yield "payload", PAYLOADS[given.payload]
    yield "driver", given.driver
    yield "provisioner", given.provisioner
    for mode, shape in given.registries.items():
        yield f"registry, {mode}", shape
    for note in given.notes:
        yield "note", note
    fewest = min(
        (each.wait.n for modes in figures.experiments.values() for each in modes), default=0
    )
    if fewest:
        yield (
            "intervals",
            (
                f"percentile bootstrap of medians, 4,000 resamples, fixed seed; with n = {fewest} the range of "
                f"the samples contains the median with a confidence of {reached_confidence(fewest):.0%}"
            ),
        )


def _advice_note(figures: Figures) -> str:
    advice = next(iter(figures.advice.values()), None)
    if advice is None:
        return ""
    return (
        "Times begin when the node is ready, and are multiples of the median build at boot (x). Add the "
        "time that your cloud needs to start a node. maxNodeProvisionTime is the worst sample, and each "
        f"other time is the {advice.quantile:.0%} quantile; each has a margin of {advice.margin:.0%}."
    )


def render_markdown(
    figures: Figures, *, reference_s: float | None = None, ready_s: float = 0.0
) -> str:
    """Render the report as Markdown for a pull request."""
    lines = ["## Time to GPU", ""]
    if figures.benchmark.conditions.is_emulated:
        lines += [f"> {_EMULATED}", ""]
    lines += [f"* {line}" for line in conclusions(figures)]
    for title, table in _tables(figures, reference_s, ready_s):
        lines += ["", f"### {title}", "", *_markdown_table(table)]
    lines += ["", _advice_note(figures), "", "<details><summary>Conditions</summary>", ""]
    lines += [f"* {name}: {value}" for name, value in _conditions(figures)]
    return "\n".join([*lines, "", "</details>", ""])


def _tables(
    figures: Figures, reference_s: float | None, ready_s: float
) -> Iterator[tuple[str, Table]]:
    yield "Waits", modes_table(figures)
    yield "Critical path of fresh nodes", path_table(figures)
    if figures.savings:
        yield "Savings of the boot path's trims", savings_table(figures)
    if figures.advice:
        yield "Advice for an autoscaler", advice_table(figures, reference_s, ready_s)


def _markdown_table(table: Table) -> Iterator[str]:
    head, rows, numbers = table
    yield f"| {' | '.join(head)} |"
    yield "|" + "|".join("--:" if at in numbers else "---" for at in range(len(head))) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def render_csv(figures: Figures) -> str:
    """Render the samples as CSV, one sample per line."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("experiment", "variant", "wait_s", "allocated_s", "compile_s"))
    for sample in figures.benchmark.samples:
        writer.writerow(
            (
                sample.experiment.value,
                sample.variant,
                sample.wait_s,
                "" if sample.allocated_s is None else sample.allocated_s,
                "" if sample.compile_s is None else sample.compile_s,
            )
        )
    for each in figures.benchmark.teardowns:
        writer.writerow(("teardown", each.way, each.duration_s, "", ""))
    return buffer.getvalue()


def render_page(
    figures: Figures,
    plots: Sequence[Plot],
    *,
    reference_s: float | None = None,
    ready_s: float = 0.0,
) -> str:
    """Render the report as one complete HTML page, with a light and a dark colour scheme."""
    parts = ["<h1>Time to GPU</h1>"]
    if figures.benchmark.conditions.is_emulated:
        parts.append(f'<p class="note">{html.escape(_EMULATED)}</p>')
    parts.append("<ul>")
    parts += [f"<li>{_marked_up(line)}</li>" for line in conclusions(figures)]
    parts.append("</ul>")
    drawn = {plot.name: _figure(plot, figures) for plot in plots}
    places = {
        "Waits": ("waits", "distribution"),
        "Critical path of fresh nodes": ("critical-path",),
        "Savings of the boot path's trims": ("savings",),
    }
    for title, table in _tables(figures, reference_s, ready_s):
        parts.append(f"<h2>{html.escape(title)}</h2>")
        if title == "Advice for an autoscaler":
            parts.append(f'<p class="muted">{html.escape(_advice_note(figures))}</p>')
        parts.append(_html_table(table))
        parts += [drawn[name] for name in places.get(title, ()) if name in drawn]
    parts.append("<h2>Conditions</h2><dl>")
    parts += [
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in _conditions(figures)
    ]
    parts.append("</dl>")
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Time to GPU</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _marked_up(line: str) -> str:
    """Return a sentence as HTML, with text between backticks as code."""
    parts = html.escape(line).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def _html_table(table: Table) -> str:
    head, rows, numbers = table

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if at in numbers else ''}>{html.escape(cell)}</{tag}>"
            for at, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _figure(plot: Plot, figures: Figures) -> str:
    light, dark = (render(plot, figures, scheme) for scheme in (LIGHT, DARK))
    title, caption = html.escape(plot.title), html.escape(plot.caption)
    return (
        f"<figure>{picture(light, dark, plot.title)}"
        f"<figcaption><strong>{title}.</strong> {caption}</figcaption></figure>"
    )
