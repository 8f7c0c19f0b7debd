"""Lists units and unit files as systemctl prints them."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from harness.shell.fakes.invocation import unknown_use
from harness.shell.fakes.unit_files import link_folders, settings
from harness.shell.fakes.units import ActiveState, Unit
from harness.shell.mocks.commands import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.shell.fakes.invocation import Invocation

ONLY_FOR_LISTS = ("-t,--type=", "--state=", "-a,--all", "--plain", "--failed")
"""The options of `systemctl list-units` and `systemctl list-unit-files` only."""
_ACTIVE_STATES = {"active", "failed", "running", "exited"}
_LEGEND = """
LOAD   = Reflects whether the unit definition was properly loaded.
ACTIVE = The high-level unit activation state, i.e. generalization of SUB.
SUB    = The low-level unit activation state, values depend on unit type.
"""
_MORE = (
    " Pass --all to see loaded but inactive units, too.\n"
    "To show all installed unit files use 'systemctl list-unit-files'."
)


def list_units(
    invocation: Invocation, units: Mapping[str, Unit], patterns: Sequence[str]
) -> Answer:
    """Answer `systemctl list-units`.

    Raises UnknownInvocationError for a call that asks for inactive units: systemd loads an inactive
    unit only if another unit of the node refers to it, and the fake does not know all units.
    """
    states = _values(invocation, "--state")
    if invocation.has("--failed"):
        states.append("failed")
    if invocation.has("--all") or not set(states) <= _ACTIVE_STATES:
        raise unknown_use(
            invocation.call,
            "the fake does not know which inactive units systemd has loaded; it lists only units "
            f"in the states {', '.join(sorted(_ACTIVE_STATES))}",
        )
    found = [
        (name, unit)
        for name, unit in _chosen(invocation, units, patterns)
        if unit.state is not ActiveState.INACTIVE
        and (not states or {unit.state.value, unit.sub_state} & set(states))
    ]
    for name, _ in found:
        if not name.endswith(".service"):
            raise unknown_use(
                invocation.call,
                f"the fake lists only services, but '{name}' is active; add '--type=service'",
            )
    is_marked = not invocation.has("--plain")
    rows = [
        (
            *(("●" if unit.is_masked or unit.is_failed else " ",) if is_marked else ()),
            name,
            "masked" if unit.is_masked else "loaded",
            unit.state.value,
            unit.sub_state,
            next(iter(settings(unit.text, "Description")[-1:]), name),
        )
        for name, unit in found
    ]
    if invocation.has("--no-legend"):
        return Answer(stdout=_table(rows))
    header = (*((" ",) if is_marked else ()), "UNIT", "LOAD", "ACTIVE", "SUB", "DESCRIPTION")
    legend = _LEGEND if rows else ""
    more = "" if states else _MORE
    return Answer(
        stdout=f"{_table([header, *rows])}{legend}{len(rows)} loaded units listed.{more}\n"
    )


def list_unit_files(
    invocation: Invocation, units: Mapping[str, Unit], patterns: Sequence[str]
) -> Answer:
    """Answer `systemctl list-unit-files`."""
    states = _values(invocation, "--state")
    if invocation.has("--failed"):
        raise unknown_use(invocation.call, "unit files have no state 'failed'")
    rows = [
        (name, unit.file_state, "enabled" if link_folders(unit.text) else "-")
        for name, unit in _chosen(invocation, units, patterns)
        if not states or unit.file_state in states
    ]
    if invocation.has("--no-legend"):
        return Answer(stdout=_table(rows), exit_code=0 if rows else 1)
    table = _table([("UNIT FILE", "STATE", "PRESET"), *rows])
    return Answer(stdout=f"{table}\n{len(rows)} unit files listed.\n", exit_code=0 if rows else 1)


def _chosen(
    invocation: Invocation, units: Mapping[str, Unit], patterns: Sequence[str]
) -> Iterable[tuple[str, Unit]]:
    """Yield the units that a list shows, sorted by their types and then by their names."""
    types = _values(invocation, "--type")
    for name in sorted(units, key=lambda each: (each.rpartition(".")[2], each.lower())):
        if types and name.rpartition(".")[2] not in types:
            continue
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            yield name, units[name]


def _values(invocation: Invocation, option: str) -> list[str]:
    return [value for given in invocation.all(option) for value in given.split(",") if value]


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows; pad each cell, except the last cell of a row, to its column's width."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "".join(
        " ".join(
            [*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]
        )
        + "\n"
        for row in rows
    )
