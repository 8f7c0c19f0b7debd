"""Pure functions that read the boots of a machine from its journal, and put them on one time axis."""

from __future__ import annotations

import bisect
import functools
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.timeline import Moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.evidence.history import JournalEntry

#: The timeline shows changes of the clock that exceed this number of seconds; changes by NTP are
#: smaller.
_CLOCK_SET_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Boot:
    """A boot with its journal entries; `offset_s` is the position of the boot's start on the timeline."""

    entries: Sequence[JournalEntry]
    offset_s: float

    def at(self, monotonic_s: float) -> float:
        """Convert a timestamp of this boot's monotonic clock to a position on the timeline."""
        return self.offset_s + monotonic_s


@dataclass(frozen=True, kw_only=True)
class Boots:
    """The boots that a timeline shows, oldest first."""

    all: tuple[Boot, ...]

    @classmethod
    def of(cls, entries: Sequence[JournalEntry], *, most: int) -> Boots:
        """Return the latest boots in a journal, at most `most`; older boots are from the image's build."""
        by_boot: dict[str, list[JournalEntry]] = {}
        for entry in entries:
            by_boot.setdefault(entry.boot, []).append(entry)
        found: list[Boot] = []
        for each in list(by_boot.values())[-most:]:
            offset = 0.0
            if found:
                last = found[-1].entries[-1]
                down_s = max(0.0, each[0].wall_s - last.wall_s)
                offset = found[-1].at(last.monotonic_s) + down_s - each[0].monotonic_s
            found.append(Boot(entries=each, offset_s=offset))
        return cls(all=tuple(found))

    def at_wall(self, wall_s: float) -> float | None:
        """Convert a wall-clock time to a position on the timeline; return None for a time before the timeline.

        The guest's clock may have been set during the timeline, so the nearest journal entry
        determines the position.
        """
        if not self._by_wall:
            return None
        after = bisect.bisect_left(self._walls, wall_s)
        places = {min(after, len(self._walls) - 1), max(after - 1, 0)}
        _, boot, entry = min(
            (self._by_wall[place] for place in places),
            key=lambda one: (abs(one[2].wall_s - wall_s), one[0]),
        )
        at_s = boot.at(entry.monotonic_s) + wall_s - entry.wall_s
        return at_s if 0.0 <= at_s < math.inf else None

    @functools.cached_property
    def _by_wall(self) -> list[tuple[int, Boot, JournalEntry]]:
        """The entries sorted by the wall clock, each with its index in the journal."""
        pairs = ((boot, entry) for boot in self.all for entry in boot.entries)
        numbered = [(number, *pair) for number, pair in enumerate(pairs)]
        return sorted(numbered, key=lambda one: one[2].wall_s)

    @functools.cached_property
    def _walls(self) -> list[float]:
        return [entry.wall_s for _, _, entry in self._by_wall]

    def moments(self) -> list[Moment]:
        """Return the reboots, and the times when the clock was set."""
        found: list[Moment] = []
        for number, boot in enumerate(self.all):
            if number:
                found.append(Moment(at_s=boot.at(0.0), words="reboot"))
            for before, after in pairwise(boot.entries):
                set_by_s = (after.wall_s - before.wall_s) - (
                    after.monotonic_s - before.monotonic_s
                )
                if abs(set_by_s) > _CLOCK_SET_S:
                    words = f"clock set by {'+' if set_by_s > 0 else '-'}{_span(abs(set_by_s))}"
                    found.append(Moment(at_s=boot.at(after.monotonic_s), words=words))
        return found


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
