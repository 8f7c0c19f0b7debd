"""The activities of all machines and images of a run, and the lines and rows that show them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.progress import Stage, clock_time, deadline_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.progress import ProgressEvent

#: No line is printed for an activity that ends within this number of seconds.
_QUICK_S = 5.0
#: Seconds between two printed lines about an activity that still runs.
_AGAIN_S = 25.0
#: Seconds after which an activity of a cache is dropped, since a cache does not report the end of each
#: activity. Builds and fetches are not dropped.
_FORGOTTEN_S = 120.0
_OF_MAKING = (Stage.BUILD, Stage.FETCH)
_OF_MACHINES = (Stage.BUSY, Stage.RUNS, Stage.ENDED)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The activity of `subject` on the xdist worker `worker`. Times are seconds since the epoch.

    The activity began at `since`. `begin` is the first event of a wait that has several parts, and
    `began` is the time of that event. `told` is the time of the last printed line about the
    activity.
    """

    worker: str
    subject: str
    event: ProgressEvent
    since: float
    begin: ProgressEvent
    began: float
    told: float
    console: str = ""
    is_told: bool = False
    is_begin_told: bool = False


class Board:
    """Receives events, and returns the lines to print. Times are seconds since the epoch.

    With `tells_running`, the returned lines include the console output of machines that tests use.
    """

    def __init__(self, *, tells_running: bool = True) -> None:
        self._tells_running = tells_running
        self._rows: dict[tuple[str, str], Row] = {}
        self._last_line = 0.0

    def take(self, event: ProgressEvent, worker: str, now: float) -> list[str]:
        """Record an event, and return the lines to print at once about this event."""
        lines = self._take(event, worker, now)
        if lines:
            self._last_line = now
        return lines

    def _take(self, event: ProgressEvent, worker: str, now: float) -> list[str]:
        key = worker, event.subject
        before = self._rows.get(key)
        if event.stage is Stage.CONSOLE:
            if before is not None:
                if before.event.stage is Stage.RUNS and not self._tells_running:
                    return []
                console = event.message.rpartition("\n")[2].removeprefix("  | ")
                self._rows[key] = replace(
                    before, console=console, told=now, is_told=True, is_begin_told=True
                )
            return [render_line(event, worker, now)]
        if event.stage in (Stage.ENDED, Stage.READY):
            self._rows.pop(key, None)
        else:
            is_part = (
                before is not None
                and event.stage is Stage.BUSY
                and before.event.stage is Stage.BUSY
                and event.until == before.event.until
            )
            self._rows[key] = Row(
                worker=worker,
                subject=event.subject,
                event=event,
                since=now,
                begin=before.begin if is_part and before else event,
                began=before.began if is_part and before else now,
                told=now,
                is_begin_told=bool(is_part and before and before.is_begin_told),
            )
            if is_part:
                return []
        if event.stage not in _OF_MACHINES:
            return [render_line(event, worker, now)]
        if before is None or before.event.stage is not Stage.BUSY or not before.is_begin_told:
            return []
        took = f"{before.begin.message}: done after {now - before.began:.0f} s"
        return [render_line(replace(before.begin, message=took, until=None), worker, now)]

    def forget(self, worker: str) -> None:
        """Drop the activities of an xdist worker that has ended."""
        for key in [key for key in self._rows if key[0] == worker]:
            del self._rows[key]

    def due(self, now: float) -> list[str]:
        """Return lines about activities that began some seconds ago.

        For a long activity, lines are returned at intervals. For a machine that a test uses, a line
        is returned only if no line was returned for `_AGAIN_S` seconds.
        """
        lines = []
        for key, row in list(self._rows.items()):
            stage = row.event.stage
            if stage is Stage.BUSY and not row.is_told and now - row.since >= _QUICK_S:
                event = row.event
            elif now - row.told < _AGAIN_S:
                continue
            elif (
                (stage is Stage.BUSY and row.is_told)
                or stage in _OF_MAKING
                or (
                    stage is Stage.RUNS
                    and self._tells_running
                    and now - self._last_line >= _AGAIN_S
                )
            ):
                since = row.since if stage in _OF_MAKING else row.began
                event = replace(row.event, message=f"{row.event.message}, for {now - since:.0f} s")
            else:
                continue
            self._rows[key] = replace(row, told=now, is_told=True, is_begin_told=True)
            self._last_line = now
            lines.append(render_line(event, row.worker, now))
        return lines

    def rows(self, now: float) -> Sequence[Row]:
        """Return the present activities, the oldest first."""
        for key, row in list(self._rows.items()):
            if (
                row.event.stage not in (*_OF_MACHINES, *_OF_MAKING)
                and now - row.since > _FORGOTTEN_S
            ):
                del self._rows[key]
        return sorted(self._rows.values(), key=lambda row: row.since)


def render_line(event: ProgressEvent, worker: str, now: float) -> str:
    """Return an event as one line with the time of day. Console output follows below the line."""
    until = "" if event.stage is Stage.CONSOLE else deadline_words(event.until, now)
    words = [clock_time(now), worker, f"[{event.subject}]", f"{event.stage.value}:"]
    return f"{' '.join(filter(None, words))} {event.message}{until}"
