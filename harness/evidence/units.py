"""Pure functions that parse systemd's descriptions and timestamps of units, and the queue of jobs.

Timestamps are microseconds of the node's monotonic clock. The timestamps show the order in which
units started, however slow the machine is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError, HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.provisioning.command import Argv

#: The names under which the evidence stores the commands' output.
SHOWN_UNITS = "shown-units"
UNIT_JOBS = "unit-jobs"

_STARTED = "InactiveExitTimestampMonotonic"
_READY = "ActiveEnterTimestampMonotonic"
_PROPERTIES = (
    "Id",
    "Names",
    "LoadState",
    "ActiveState",
    "UnitFileState",
    _STARTED,
    _READY,
    "ExecStart",
)
#: The fields before and after the arguments of a command.
_ARGV, _AFTER_ARGV = "argv[]=", " ; ignore_errors="
_NO_JOBS = "No jobs running."
_NAME = re.compile(
    r"[^\s/]+\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope)"
)


@dataclass(frozen=True, kw_only=True)
class ShownUnit:
    """One unit, from `systemctl show`."""

    name: str
    load: str
    """`loaded`, `not-found`, `masked`, …"""
    active: str
    """`active`, `activating`, `inactive`, `failed`, …"""
    enablement: str
    """`enabled`, `disabled`, `masked`, …, or empty for a unit without a file."""
    started_us: int | None
    """When the latest start began; None if the unit was never started, or systemd has forgotten the time."""
    ready_us: int | None
    """When the unit last became active; None if the unit was never active, or systemd has forgotten the time."""
    commands: tuple[str, ...]
    """The command lines of `ExecStart=`, words separated by blanks."""
    aliases: tuple[str, ...] = ()
    """All names of the unit; systemd lists the unit only under the main name."""


def check_unit_name(name: str, *, source: str) -> None:
    """Raise BadInputError if a unit's name lacks the type, since systemd lists units with their types."""
    if _NAME.fullmatch(name) is None:
        raise BadInputError(
            f"'{name}' is not the full name of a unit; add the unit's type, as in 'kubelet.service'.",
            source=source,
            key="unit",
        )


def unit_commands(*units: str) -> dict[str, Argv]:
    """Return the commands whose output this module parses, for `node.evidence(commands=…)`.

    Raises BadInputError for a unit's name without the type, such as `kubelet` for
    `kubelet.service`.
    """
    for unit in units:
        check_unit_name(unit, source="unit_commands")
    return {
        SHOWN_UNITS: ["systemctl", "show", f"--property={','.join(_PROPERTIES)}", *units],
        UNIT_JOBS: ["systemctl", "list-jobs", "--no-legend", "--plain"],
    }


def parse_shown_units(text: str) -> Mapping[str, ShownUnit]:
    """Parse the output of `systemctl show`; each name of a unit is a key of the result.

    Raises HarnessError if a block lacks a property.
    """
    units = [_parse_unit(properties) for properties in _split(text)]
    return {name: unit for unit in units for name in (*unit.aliases, unit.name)}


def _split(text: str) -> Iterator[list[str]]:
    """Yield the properties of each unit; empty lines separate units.

    An argument of a command may have line breaks, empty lines and lines like `PATH=/bin`.
    """
    properties: list[str] = []
    command: list[str] = []
    for line in text.split("\n"):
        if command or line.startswith("ExecStart={"):
            command.append(line)
            if _AFTER_ARGV in line and line.endswith("}"):
                properties.append("\n".join(command))
                command = []
        elif line:
            properties.append(line)
        elif properties:
            yield properties
            properties = []
    if properties or command:
        yield [*properties, *command]


def _parse_unit(properties: list[str]) -> ShownUnit:
    lines = [line.partition("=") for line in properties]
    values = {name: value for name, _, value in lines}
    try:
        (name,) = (value for key, _, value in lines if key == "Id")
        return ShownUnit(
            name=name,
            aliases=tuple(values.get("Names", "").split()),
            load=values["LoadState"],
            active=values["ActiveState"],
            enablement=values["UnitFileState"],
            started_us=int(values[_STARTED]) or None,
            ready_us=int(values[_READY]) or None,
            commands=tuple(_argvs(value for name, _, value in lines if name == "ExecStart")),
        )
    except (KeyError, ValueError) as error:
        block = "\n".join(properties)
        raise HarnessError(
            f"`systemctl show` printed a unit in an unknown format ({error!r}): {block!r}."
        ) from error


def _argvs(values: Iterator[str]) -> Iterator[str]:
    for value in values:
        argv, end, _ = value.partition(_ARGV)[2].rpartition(_AFTER_ARGV)
        if not end:
            raise ValueError(value)
        yield argv.strip()


def parse_unit_jobs(text: str) -> Mapping[str, str]:
    """Return the kind of each unit's job (`start`, `restart`, …) from `systemctl list-jobs`.

    Raises HarnessError if a line has an unknown form.
    """
    jobs: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split()
        if not words or line.strip() == _NO_JOBS:
            continue
        if len(words) != 4 or not words[0].isdigit():
            raise HarnessError(f"`systemctl list-jobs` printed an unknown line: {line!r}.")
        jobs[words[1]] = words[2]
    return jobs
