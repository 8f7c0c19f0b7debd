"""Draws one timeline, or several side by side with the same rows and the same scale."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from harness.plots import COLOURS, render_figure
from harness.timeline import Lane, SpanState, seconds
from harness.timeline.rows import at_most, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.plots import Scheme
    from harness.timeline import Span, Timeline
    from harness.timeline.rows import Row

#: The width in inches and the resolution in pixels per inch: together, 1000 pixels.
_WIDTH_IN, _DPI = 10.0, 100
_ROW_IN = 0.2
_FONT_PT = 7.5
_NAME_LENGTH = 40
_BAR = 0.62
_COLOUR_OF = {
    Lane.UNITS: COLOURS[5],
    Lane.STEPS: COLOURS[2],
    Lane.DKMS: COLOURS[6],
    Lane.CONTAINERS: COLOURS[4],
    Lane.CONSOLE: COLOURS[7],
}
_CRITICAL = COLOURS[3]
_WAIT = COLOURS[1]


def render_timelines(timelines: Sequence[Timeline], scheme: Scheme, *, form: str = "svg") -> bytes:
    """Render one timeline, or several side by side; `form` is `svg` or `png`.

    Raises RequirementError if matplotlib is missing.
    """
    rows = at_most(rows_of(timelines))
    height_in = 1.5 + _ROW_IN * max(3, len(rows))

    def draw(figure: Any) -> None:
        _draw(figure, timelines, rows)

    return render_figure(
        draw,
        (_WIDTH_IN, height_in),
        scheme,
        form=form,
        salt=f"timeline-{scheme.name}",
        dpi=_DPI,
        has_glyphs=False,
    )


def _draw(figure: Any, timelines: Sequence[Timeline], rows: Sequence[Row]) -> None:
    panels = figure.subplots(1, len(timelines), sharey=True, squeeze=False)[0]
    end_s = 1.02 * max(each.end_s for each in timelines)
    names_pt = max([_width_pt(_label(row)) for row in rows] or [0.0])
    panel_pt = (72 * _WIDTH_IN - names_pt - 40) / len(timelines) - 12
    for number, (axes, timeline) in enumerate(zip(panels, timelines, strict=True)):
        axes.set_xlim(0, end_s)
        axes.set_ylim(max(3, len(rows)) - 0.4, -0.6)
        axes.set_title(
            _fitting(f"{timeline.title}, {seconds(timeline.end_s)}", panel_pt / 1.25),
            fontsize=9,
            loc="left",
            pad=18 if any(each.moments for each in timelines) else 6,
        )
        axes.set_xlabel("seconds since the kernel began", fontsize=8)
        axes.tick_params(axis="x", labelsize=8)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
        scale_pt = panel_pt / end_s
        for place, row in enumerate(rows):
            _draw_row(axes, place, row, number, scale_pt=scale_pt, end_s=timeline.end_s)
        _draw_path(axes, rows, number)
        _draw_moments(axes, timeline, scale_pt)
    panels[0].set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=_FONT_PT)
    for tick, row in zip(panels[0].get_yticklabels(), rows, strict=True):
        if any(span.is_critical for spans in row.spans for span in spans):
            tick.set_fontweight("bold")
    _draw_legend(figure, rows)


def _label(row: Row) -> str:
    if row.lane is None:
        return _shortened(f"not read: {row.name}")
    prefix = {Lane.DKMS: "DKMS ", Lane.CONTAINERS: "container "}.get(row.lane, "")
    return _shortened(f"{prefix}{row.name}")


def _shortened(name: str) -> str:
    """Return a name; a long name loses its middle part, since names of units differ at their ends."""
    if len(name) <= _NAME_LENGTH:
        return name
    return f"{name[: _NAME_LENGTH - 16]}…{name[-15:]}"


def _draw_row(
    axes: Any, place: int, row: Row, number: int, *, scale_pt: float, end_s: float
) -> None:
    reason = row.reasons[number]
    if reason is not None:
        axes.barh(
            place,
            end_s,
            height=_BAR,
            facecolor="none",
            edgecolor=COLOURS[7],
            hatch="////",
            linewidth=0.6,
        )
        room_pt = end_s * scale_pt - 12
        _write(axes, place, 0.0, 6.0, _fitting(reason, room_pt), is_boxed=True)
        return
    for span in row.spans[number]:
        colour = _COLOUR_OF[span.lane]
        if span.blocked_from_s is not None and span.blocked_s > 0:
            axes.barh(
                place,
                span.blocked_s,
                left=span.blocked_from_s,
                height=0.3,
                facecolor="none",
                edgecolor=_WAIT,
                hatch="||||",
                linewidth=0.8,
            )
        axes.barh(
            place,
            max(span.duration_s, 1.5 / scale_pt),
            left=span.start_s,
            height=_BAR,
            facecolor=colour,
            edgecolor=axes.xaxis.label.get_color() if span.state is SpanState.FAILED else colour,
            hatch="xxxx" if span.state is SpanState.FAILED else "",
            linewidth=0.8,
        )
        if span.state is SpanState.RUNNING:
            axes.barh(
                place,
                span.duration_s,
                left=span.start_s,
                height=_BAR,
                facecolor="none",
                edgecolor=axes.get_facecolor(),
                hatch="//",
                linewidth=0.0,
            )
        if span.is_critical:
            axes.barh(
                place,
                max(span.duration_s, 1.5 / scale_pt),
                left=span.start_s,
                height=_BAR,
                facecolor="none",
                edgecolor=_CRITICAL,
                linewidth=1.8,
            )
    if row.spans[number]:
        _describe(axes, place, row.spans[number], scale_pt, end_s)


def _describe(axes: Any, place: int, spans: Sequence[Span], scale_pt: float, end_s: float) -> None:
    """Write the duration and the blockers of the last piece of work beside its bar, or on the bar."""
    last = spans[-1]
    words = _words(last)
    right_pt = (end_s * 1.02 - last.end_s) * scale_pt - 8
    first_s = min(
        [last.start_s]
        + [span.blocked_from_s for span in spans if span.blocked_from_s is not None]
        + [span.start_s for span in spans]
    )
    left_pt = first_s * scale_pt - 8
    short = words.split(";", maxsplit=1)[0]
    for text in (words, short):
        width = _width_pt(text)
        if width <= right_pt:
            _write(axes, place, last.end_s, 4.0, text, is_boxed=True)
            return
        if width <= left_pt:
            _write(axes, place, first_s, -4.0, text, align="right")
            return
        if last.blocked_from_s is not None and width <= last.start_s * scale_pt - 8:
            # Write the text over the wait, which is a thin bar.
            _write(axes, place, last.start_s, -4.0, text, align="right", is_boxed=True)
            return
    room_pt = last.duration_s * scale_pt - 8
    _write(axes, place, last.start_s, 4.0, _fitting(short, room_pt), is_boxed=True)


def _words(span: Span) -> str:
    words = {
        SpanState.DONE: seconds(span.duration_s),
        SpanState.FAILED: f"failed after {seconds(span.duration_s)}",
        SpanState.RUNNING: f"still running after {seconds(span.duration_s)}",
        SpanState.WAITING: f"waiting for {seconds(span.blocked_s)}",
    }[span.state]
    if span.lane is Lane.CONSOLE:
        words = "printed last"
    elif span.state is SpanState.DONE and span.name.endswith(".target"):
        words = "reached"
    if span.blockers and (span.is_critical or span.state is SpanState.WAITING):
        names = ", ".join(_shortened(name) for name in span.blockers[:2])
        more = f" and {len(span.blockers) - 2} more" if len(span.blockers) > 2 else ""
        words += f"; {'for' if span.state is SpanState.WAITING else 'after'} {names}{more}"
    return words


def _write(
    axes: Any,
    place: int,
    at_s: float,
    shift_pt: float,
    text: str,
    *,
    align: str = "left",
    is_boxed: bool = False,
) -> None:
    box = {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    axes.annotate(
        text,
        (at_s, place),
        xytext=(shift_pt, 0),
        textcoords="offset points",
        va="center",
        ha=align,
        fontsize=_FONT_PT,
        bbox=box if is_boxed else None,
        annotation_clip=False,
    )


def _draw_path(axes: Any, rows: Sequence[Row], number: int) -> None:
    """Draw a line from each unit on the critical path to the unit for which it waited."""
    places = {
        span.name: (place, span)
        for place, row in enumerate(rows)
        for span in row.spans[number]
        if span.is_critical and span.lane is Lane.UNITS
    }
    for place, span in places.values():
        for blocker in span.blockers:
            if blocker in places:
                before, held_by = places[blocker]
                axes.plot(
                    [held_by.end_s, held_by.end_s, span.start_s],
                    [before, place, place],
                    color=_CRITICAL,
                    linewidth=0.9,
                    alpha=0.7,
                    zorder=0.9,
                )


def _draw_moments(axes: Any, timeline: Timeline, scale_pt: float) -> None:
    """Mark moments such as reboots above the rows; leave out labels that do not fit."""
    free_pt = 0.0
    for moment in sorted(timeline.moments, key=lambda each: each.at_s):
        axes.axvline(
            moment.at_s, color=axes.xaxis.label.get_color(), linewidth=0.8, linestyle=(0, (3, 2))
        )
        at_pt, width = moment.at_s * scale_pt, _width_pt(moment.words)
        is_left = at_pt + width > axes.get_xlim()[1] * scale_pt
        start_pt = at_pt - width if is_left else at_pt
        if start_pt < free_pt:
            continue
        free_pt = start_pt + width + 6
        axes.annotate(
            moment.words,
            (moment.at_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right" if is_left else "left",
            va="bottom",
            fontsize=_FONT_PT,
        )


def _draw_legend(figure: Any, rows: Sequence[Row]) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415 - an optional dependency

    spans = [span for row in rows for each in row.spans for span in each]
    handles = [
        Patch(facecolor=colour, label=lane.value)
        for lane, colour in _COLOUR_OF.items()
        if any(span.lane is lane for span in spans)
    ]
    if any(span.is_critical for span in spans):
        handles.append(
            Patch(facecolor="none", edgecolor=_CRITICAL, linewidth=1.8, label="critical path")
        )
    if any(span.blocked_s > 0 for span in spans):
        label = "waits for one unit only"
        handles.append(Patch(facecolor="none", edgecolor=_WAIT, hatch="||||", label=label))
    if any(reason for row in rows for reason in row.reasons):
        label = "could not be read"
        handles.append(Patch(facecolor="none", edgecolor=COLOURS[7], hatch="////", label=label))
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=6, fontsize=8, frameon=False
        )


@cache
def _width_pt(text: str) -> float:
    """Return the width of a label in points, plus a reserve for the wider fonts of SVG viewers."""
    from matplotlib.textpath import TextPath  # noqa: PLC0415 - an optional dependency

    return 1.05 * float(TextPath((0, 0), text, size=_FONT_PT).get_extents().width) if text else 0.0


def _fitting(text: str, room_pt: float) -> str:
    """Return a text, truncated so that it fits into `room_pt` points."""
    if _width_pt(text) <= room_pt:
        return text
    cuts = (f"{text[:length].rstrip()}…" for length in range(len(text) - 1, 2, -2))
    return next((cut for cut in cuts if _width_pt(cut) <= room_pt), "")
