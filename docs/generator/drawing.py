"""Draws graphs as SVG: boxes in rows, and arrows that point down.

The code uses no external program and no network.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CHARACTER, _PADDING, _GAP = 7.4, 14, 18
_HEIGHT, _ROW = 32, 78
_SWEEPS = 12

_STYLE = (
    "text{font:13px DejaVu Sans Mono,Menlo,Consolas,monospace;fill:#1a2330;text-anchor:middle}"
    "rect.box{fill:#eef3fa;stroke:#3f5f8a;rx:5}"
    "path{fill:none;stroke:#7b8ba1;stroke-width:1.2}"
)


_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0,0 8,4 0,8z" style="fill:#7b8ba1"/></marker></defs>'
)


@dataclass(kw_only=True)
class _Place:
    """A box, or the point where a long arrow crosses a row."""

    row: int
    width: float
    below: list[str] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    left: float = 0.0

    @property
    def centre(self) -> float:
        return self.left + self.width / 2


def layered(edges: Mapping[str, frozenset[str]], *, title: str) -> str:
    """Return the SVG of a graph, with each name in a row above all names that it points to.

    Equal input gives equal output.
    """
    places, routes = _places(edges)
    rows = _ordered(places)
    width = _arrange(rows, places)
    height = len(rows) * _ROW - (_ROW - _HEIGHT) + 2 * _GAP
    size = f'width="{width:.0f}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        _TIP,
        f'<rect {size} style="fill:#fff"/>',
        *(_arrow([places[name] for name in route]) for route in routes),
        *(_box(name, places[name]) for name in sorted(edges)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _places(edges: Mapping[str, frozenset[str]]) -> tuple[dict[str, _Place], list[list[str]]]:
    """Return the places of all boxes and of the points where arrows cross rows, and all routes."""
    depth: dict[str, int] = {}

    def depth_of(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max((depth_of(target) for target in edges[name]), default=-1)
        return depth[name]

    top = max(map(depth_of, edges), default=0)
    places = {
        name: _Place(row=top - depth[name], width=len(name) * _CHARACTER + 2 * _PADDING)
        for name in sorted(edges)
    }
    routes: list[list[str]] = []
    for name in sorted(edges):
        for target in sorted(edges[name]):
            passed = {
                f"{name} to {target} in row {row}": _Place(row=row, width=4.0)
                for row in range(places[name].row + 1, places[target].row)
            }
            places.update(passed)
            route = [name, *passed, target]
            routes.append(route)
            for upper, lower in itertools.pairwise(route):
                places[upper].below.append(lower)
                places[lower].above.append(upper)
    return places, routes


def _ordered(places: Mapping[str, _Place]) -> list[list[str]]:
    """Return the rows, each sorted by the mean position of its members' neighbours."""
    count = 1 + max((place.row for place in places.values()), default=0)
    rows = [[name for name in places if places[name].row == row] for row in range(count)]
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        for row in rows[1:] if downwards else reversed(rows[:-1]):
            position = {name: at for each in rows for at, name in enumerate(each)}
            weight = {
                name: _mean(
                    places[name].above if downwards else places[name].below,
                    position,
                    position[name],
                )
                for name in row
            }
            row.sort(key=weight.__getitem__)
    return rows


def _mean(names: Sequence[str], position: Mapping[str, float], default: float) -> float:
    return sum(position[name] for name in names) / len(names) if names else default


def _arrange(rows: Sequence[Sequence[str]], places: Mapping[str, _Place]) -> float:
    """Set the position of each row's members, near their neighbours; return the total width."""
    for row in rows:
        _pack(row, places, dict.fromkeys(row, 0.0))
    widest = max((places[row[-1]].left + places[row[-1]].width for row in rows), default=0.0)
    for row in rows:
        slack = (widest - places[row[-1]].left - places[row[-1]].width) / 2
        for name in row:
            places[name].left += slack
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            centres = {name: place.centre for name, place in places.items()}
            wanted = {
                name: _mean(
                    [*places[name].above, *places[name].below], centres, places[name].centre
                )
                - places[name].width / 2
                for name in row
            }
            _pack(row, places, wanted)
    leftmost = min((place.left for place in places.values()), default=0.0)
    for place in places.values():
        place.left += _GAP - leftmost
    return max((place.left + place.width for place in places.values()), default=0.0) + _GAP


def _pack(row: Sequence[str], places: Mapping[str, _Place], wanted: Mapping[str, float]) -> None:
    """Move a row's members to their wanted positions, in order and without overlap.

    Members that would overlap are moved as one block, to the mean of their wanted positions.
    """
    blocks: list[tuple[list[str], float, float]] = []  # names, sum of wanted positions, width
    for name in row:
        names, wishes, width = [name], wanted[name], places[name].width
        while blocks:
            before, earlier, taken = blocks[-1]
            if earlier / len(before) + taken + _GAP <= wishes / len(names):
                break
            blocks.pop()
            wishes = earlier + wishes - len(names) * (taken + _GAP)
            names, width = [*before, *names], taken + _GAP + width
        blocks.append((names, wishes, width))
    for names, wishes, _ in blocks:
        left = wishes / len(names)
        for name in names:
            places[name].left = left
            left += places[name].width + _GAP


def _box(name: str, place: _Place) -> str:
    top = _GAP + place.row * _ROW
    return (
        f'<rect class="box" x="{place.left:.1f}" y="{top}" width="{place.width:.1f}" '
        f'height="{_HEIGHT}"/>'
        f'<text x="{place.centre:.1f}" y="{top + 21}">{escape(name)}</text>'
    )


def _arrow(route: Sequence[_Place]) -> str:
    """Draw a curve from the first place's lower edge to the last place's upper edge."""
    start, *_, end = route
    at_y = float(_GAP + start.row * _ROW + _HEIGHT)
    words = [f"M{start.centre:.1f},{at_y:.1f}"]
    for before, place in itertools.pairwise(route):
        top = _GAP + place.row * _ROW
        middle = (at_y + top) / 2
        words.append(
            f"C{before.centre:.1f},{middle:.1f} {place.centre:.1f},{middle:.1f} "
            f"{place.centre:.1f},{top}"
        )
        at_y = float(top)
        if place is not end:
            at_y = float(top + _HEIGHT)
            words.append(f"V{at_y:.1f}")
    return f'<path d="{" ".join(words)}" marker-end="url(#tip)"/>'
