"""Pure functions that determine, from systemd's timestamps or from the journal, when units started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.timeline import Lane, Span, SpanState

if TYPE_CHECKING:
    from harness.evidence.history import UnitTimes
    from harness.timeline.boots import Boot

#: The ids of systemd's messages that a unit is being started, was started, or failed.
_STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"
_STARTED = "39f53479d3a045ac8e11786248231fbf"
_FAILED = "be02cf6855d2428ba40df7e9d022f03d"


def start_of(unit: UnitTimes, offset_s: float, end_s: float, *, has_job: bool) -> Span | None:
    """Return the latest start of a unit, or None if the unit did not start.

    `offset_s` is added to the unit's timestamps.

    A unit that has a job in systemd's queue and has not begun is still waiting at `end_s`, when the
    evidence was gathered.
    """
    if has_job and unit.active not in {"activating", "active", "reloading"}:
        return Span(
            lane=Lane.UNITS, name=unit.name, start_s=end_s, end_s=end_s, state=SpanState.WAITING
        )
    if unit.started_s is None:
        return None
    is_open = unit.active == "activating" or unit.ready_s is None
    has_failed = unit.active == "failed" or unit.result not in {"success", ""}
    return Span(
        lane=Lane.UNITS,
        name=unit.name,
        start_s=offset_s + unit.started_s,
        end_s=end_s if is_open or unit.ready_s is None else offset_s + unit.ready_s,
        state=SpanState.RUNNING if is_open else SpanState.FAILED if has_failed else SpanState.DONE,
        detail=f"result: {unit.result}" if has_failed else None,
    )


def starts_in_journal(boot: Boot, end_s: float) -> list[Span]:
    """Return the starts of units in a boot's journal; a start without an end lasts until `end_s`."""
    started: dict[str, float] = {}
    found: list[Span] = []
    for entry in boot.entries:
        unit, message = entry.fields.get("UNIT"), entry.fields.get("MESSAGE_ID")
        if unit is None:
            continue
        if message == _STARTING:
            started[unit] = entry.monotonic_s
        elif message in {_STARTED, _FAILED} and unit in started:
            has_failed = message == _FAILED
            found.append(
                Span(
                    lane=Lane.UNITS,
                    name=unit,
                    start_s=boot.at(started.pop(unit)),
                    end_s=boot.at(entry.monotonic_s),
                    state=SpanState.FAILED if has_failed else SpanState.DONE,
                )
            )
    found += [
        Span(
            lane=Lane.UNITS,
            name=unit,
            start_s=boot.at(at_s),
            end_s=end_s,
            state=SpanState.RUNNING,
        )
        for unit, at_s in started.items()
    ]
    return found
