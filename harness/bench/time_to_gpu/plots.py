"""Draws a report's plots with matplotlib: as SVG in two colour schemes for the page, as PNG and SVG files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bench.time_to_gpu.samples import Experiment, Mode
from harness.plots import COLOURS, render_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.bench.time_to_gpu.figures import Figures, ModeFigures
    from harness.plots import Scheme

_WIDTH_IN = 9.2
_REST = "#B8B8B8"
#: Parts below this share of a build's wait are shown together as one part.
_SMALLEST_PART = 0.025
_OTHER = "other steps"


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot of the report."""

    name: str
    title: str
    caption: str
    draw: Callable[[Any, Figures], None]
    height_in: float


def plots_of(figures: Figures) -> list[Plot]:
    """Return the plots for which the run has samples; plots relative to a build at boot need builds."""
    compared = _compared(figures)
    modes = len(compared.get(Experiment.SCALE_UP, ()))
    rows = sum(map(len, compared.values()))
    found = []
    if rows:
        found.append(
            Plot(
                name="waits",
                title="Wait for the GPU, as a share of the build at boot",
                caption="Medians with 95 % bootstrap intervals; each point is a sample. A diamond is the "
                "published ratio of the same pair.",
                draw=_draw_waits,
                height_in=1.5 + 0.42 * rows,
            )
        )
    if modes:
        found += [
            Plot(
                name="critical-path",
                title="Critical path of a fresh node",
                caption="Medians of the parts, one after another, as a share of the wait for a build at boot.",
                draw=_draw_path,
                height_in=2.4 + 0.45 * modes,
            ),
            Plot(
                name="distribution",
                title="Distribution of the wait of fresh nodes",
                caption="Share of the nodes that have their GPU after this wait.",
                draw=_draw_distribution,
                height_in=4.4,
            ),
        ]
    if figures.savings:
        found.append(
            Plot(
                name="savings",
                title="What each trim of the boot path saves",
                caption="Share of a prebaked node's wait without the trim, with 95 % bootstrap intervals. "
                "An interval that includes zero supports no saving.",
                draw=_draw_savings,
                height_in=1.6 + 0.5 * len(figures.savings),
            )
        )
    return found


def render(plot: Plot, figures: Figures, scheme: Scheme, *, form: str = "svg") -> bytes:
    """Render a plot; `form` is `svg` or `png`. Raises RequirementError if matplotlib is missing."""
    return render_figure(
        lambda figure: plot.draw(figure, figures),
        (_WIDTH_IN, plot.height_in),
        scheme,
        form=form,
        # A fixed salt gives the same file each time.
        salt="time-to-gpu",
    )


def _percent_axis(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


def _compared(figures: Figures) -> Mapping[Experiment, Sequence[ModeFigures]]:
    """Return the modes of each experiment that measured the build at boot; the first mode is the build."""
    return {
        name: modes for name, modes in figures.experiments.items() if modes[0].mode is Mode.BUILD
    }


def _unit_of(figures: Figures, experiment: Experiment) -> float:
    """Return the median wait for a build at boot in an experiment."""
    return figures.experiments[experiment][0].wait.value


def _draw_waits(figure: Any, figures: Figures) -> None:
    axes = figure.subplots()
    rows = [(name, each) for name, modes in _compared(figures).items() for each in modes]
    labels = []
    for place, (experiment, each) in enumerate(rows):
        unit = _unit_of(figures, experiment)
        colour = COLOURS[0] if experiment is Experiment.SCALE_UP else COLOURS[2]
        shown = each.ratio
        value = each.wait.value / unit
        low, high = each.wait.low / unit, each.wait.high / unit
        if shown is not None:
            value, low, high = shown.value, shown.low, shown.high
        axes.barh(place, value, color=colour, alpha=0.55, height=0.62)
        axes.errorbar(
            value,
            place,
            xerr=[[max(0.0, value - low)], [max(0.0, high - value)]],
            color=_text_colour(axes),
            capsize=4,
            linewidth=1.4,
        )
        axes.plot(
            [wait / unit for wait in each.waits],
            [place] * len(each.waits),
            linestyle="none",
            marker="o",
            markersize=3.5,
            color=colour,
        )
        for published in each.published:
            axes.plot(
                [published.ratio], [place], marker="D", markersize=7, color=COLOURS[3], zorder=5
            )
        labels.append(f"{each.mode.value} ({experiment.value}, n = {each.wait.n})")
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("wait, as a share of the build at boot's median in the same experiment")
    _percent_axis(axes.xaxis)
    axes.grid(axis="x", linewidth=0.6)
    axes.set_axisbelow(True)


def _text_colour(axes: Any) -> str:
    return str(axes.xaxis.label.get_color())


def _draw_path(figure: Any, figures: Figures) -> None:
    axes = figure.subplots()
    modes = figures.experiments[Experiment.SCALE_UP]
    unit = _unit_of(figures, Experiment.SCALE_UP)
    lengths = [
        {name: part.value * each.wait.value / unit for name, part in each.parts.items()}
        for each in modes
    ]
    names = _parts_to_show(lengths)
    starts = _first_starts(figures)
    names.sort(key=lambda name: starts.get(name, math.inf))
    left = [0.0] * len(modes)
    for number, name in enumerate(names):
        widths = [
            sum(length for part, length in parts.items() if part not in names)
            if name == _OTHER
            else parts.get(name, 0.0)
            for parts in lengths
        ]
        axes.barh(
            range(len(modes)),
            widths,
            left=left,
            height=0.62,
            label=name,
            color=_REST if name == _OTHER else COLOURS[number % len(COLOURS)],
            hatch="" if number < len(COLOURS) or name == _OTHER else "//",
            edgecolor=axes.get_facecolor(),
            linewidth=0.5,
        )
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(modes)), [each.mode.value for each in modes])
    axes.invert_yaxis()
    axes.set_xlabel("share of the build at boot's wait")
    _percent_axis(axes.xaxis)
    axes.grid(axis="x", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)


def _first_starts(figures: Figures) -> dict[str, float]:
    """Return the earliest start of each part; parts are drawn in the order of these starts."""
    starts: dict[str, float] = {}
    for sample in figures.benchmark.samples:
        for segment in sample.segments:
            starts[segment.name] = min(starts.get(segment.name, math.inf), segment.start_s)
    return starts


def _parts_to_show(lengths: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the parts that are long in any mode, the longest first, and then one part for all other parts."""
    longest: dict[str, float] = {}
    for parts in lengths:
        for name, length in parts.items():
            longest[name] = max(longest.get(name, 0.0), length)
    kept = [name for name, length in longest.items() if length >= _SMALLEST_PART]
    kept = sorted(kept, key=lambda name: -longest[name])[: 2 * len(COLOURS) - 1]
    return [*kept, _OTHER] if len(kept) < len(longest) else kept


def _draw_distribution(figure: Any, figures: Figures) -> None:
    axes = figure.subplots()
    unit = _unit_of(figures, Experiment.SCALE_UP)
    most = 0.0
    for number, each in enumerate(figures.experiments[Experiment.SCALE_UP]):
        waits = sorted(wait / unit for wait in each.waits)
        most = max(most, waits[-1])
        steps = [index / len(waits) for index in range(len(waits) + 1)]
        axes.step(
            [0.0, *waits],
            steps,
            where="post",
            label=f"{each.mode.value} (n = {len(waits)})",
            color=COLOURS[number % len(COLOURS)],
            linewidth=2,
            linestyle=("-", "--", "-.", ":")[number % 4],
        )
    axes.set_xlim(0, most * 1.05)
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("wait, as a share of the build at boot's median")
    axes.set_ylabel("share of the nodes")
    _percent_axis(axes.xaxis)
    _percent_axis(axes.yaxis)
    axes.grid(linewidth=0.6)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)


def _draw_savings(figure: Any, figures: Figures) -> None:
    axes = figure.subplots()
    for place, each in enumerate(figures.savings):
        share = each.share
        colour = COLOURS[2] if each.is_claimed else COLOURS[7]
        axes.barh(place, share.value, color=colour, alpha=0.6, height=0.55)
        axes.errorbar(
            share.value,
            place,
            xerr=[[max(0.0, share.value - share.low)], [max(0.0, share.high - share.value)]],
            color=_text_colour(axes),
            capsize=4,
            linewidth=1.4,
        )
    axes.axvline(0.0, color=_text_colour(axes), linewidth=1)
    names = [
        f"{each.trim.value.removeprefix('without-').replace('-', ' ')}\n"
        f"({'claimed' if each.is_claimed else 'not claimed'}, n = {each.share.n})"
        for each in figures.savings
    ]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("saved share of the wait without the trim")
    _percent_axis(axes.xaxis)
    axes.grid(axis="x", linewidth=0.6)
    axes.set_axisbelow(True)
