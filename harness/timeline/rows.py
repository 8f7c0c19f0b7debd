"""The rows of a timeline's picture: which work the picture shows, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.timeline import Lane, SpanState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.timeline import Span, Timeline

_MOST_UNITS = 26
#: A unit that took a smaller share of the timeline gets no row, unless the unit is critical or
#: failed.
_LEAST_SHARE = 0.004
#: The largest number of rows, since a PNG is at most 65 536 pixels high.
_MOST_ROWS = 300


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the picture: all pieces of work with one name, or a gap."""

    lane: Lane | None
    name: str
    spans: tuple[tuple[Span, ...], ...]
    """For each timeline, the pieces of work with the row's name."""
    reasons: tuple[str | None, ...]
    """For each timeline, why the work could not be read."""


def shown_units(timeline: Timeline) -> set[str]:
    """Return the units that get a row: the longest, the critical, the failed and the unfinished units."""
    units = [span for span in timeline.spans if span.lane is Lane.UNITS]
    longest = sorted(units, key=lambda span: -span.duration_s)[:_MOST_UNITS]
    names = {span.name for span in longest if span.duration_s >= _LEAST_SHARE * timeline.end_s}
    return names | {
        span.name for span in units if span.is_critical or span.state is not SpanState.DONE
    }


def rows_of(timelines: Sequence[Timeline]) -> list[Row]:
    """Return the rows, sorted by the time at which a row's work began in the first timeline that has this work."""
    units = set().union(*(shown_units(each) for each in timelines))
    found: dict[tuple[Lane, str], list[list[Span]]] = {}
    for number, timeline in enumerate(timelines):
        for span in timeline.spans:
            if span.lane is not Lane.UNITS or span.name in units:
                row = found.setdefault((span.lane, span.name), [[] for _ in timelines])
                row[number].append(span)
    rows = [
        Row(
            lane=lane,
            name=name,
            spans=tuple(map(tuple, spans)),
            reasons=(None,) * len(timelines),
        )
        for (lane, name), spans in found.items()
    ]
    rows.sort(key=_beginning)
    gaps = dict.fromkeys(gap.what for each in timelines for gap in each.gaps)
    return rows + [
        Row(
            lane=None,
            name=what,
            spans=((),) * len(timelines),
            reasons=tuple(
                next((gap.reason for gap in each.gaps if gap.what == what), None)
                for each in timelines
            ),
        )
        for what in gaps
    ]


def at_most(rows: list[Row]) -> list[Row]:
    """Return all rows or, if there are too many, some rows and a row that says how many rows there are.

    Gaps and rows with critical work are kept first, then the rows with the longest work.
    """

    def weight(row: Row) -> tuple[bool, float]:
        spans = [span for each in row.spans for span in each]
        return (
            row.lane is None or any(span.is_critical for span in spans),
            max((span.duration_s for span in spans), default=0.0),
        )

    if len(rows) <= _MOST_ROWS:
        return rows
    kept = set(map(id, sorted(rows, key=weight, reverse=True)[:_MOST_ROWS]))
    reason = f"There are {len(rows)} rows; the table on the page has all rows."
    left_out = Row(
        lane=None,
        name="shorter work",
        spans=((),) * len(rows[0].spans),
        reasons=(reason,) * len(rows[0].reasons),
    )
    return [*(row for row in rows if id(row) in kept), left_out]


def _beginning(row: Row) -> tuple[float, int]:
    of_first = next(spans for spans in row.spans if spans)
    lanes = list(Lane)
    return (of_first[0].start_s, 0 if row.lane is None else lanes.index(row.lane))
