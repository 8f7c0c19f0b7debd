"""The history of a node: its journal, its packages, and the timestamps of its units.

The history is gathered only from a machine whose test failed, because gathering the history takes
longer than gathering the evidence that tests check. The history has its own folder in the evidence.
Gathering the history writes nothing on the node.
"""

from __future__ import annotations

import itertools
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence.request import EvidenceRequest
from harness.evidence.units import UNIT_JOBS, unit_commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The folder of the evidence that has the node's history.
HISTORY = "history"
UNIT_TIMES = "unit-times"
MANAGER_TIMES = "manager-times"
JOURNAL = "journal-export"
#: The packed journal in the folder HISTORY.
PACKED_JOURNAL = "journal.export.gz"
PACKAGES = "packages"
UPTIME = "/proc/uptime"
#: The logs of DKMS's builds. The second line of a log says when the build started. The time of the last
#: write to the log shows when the build ended.
DKMS_LOGS = (
    "/var/lib/dkms/*/*/*/*/log/make.log",
    "/var/lib/dkms/*/*/build/make.log",
)
#: The limits of the gathered journal: the number of the latest entries, and their unpacked size.
JOURNAL_ENTRIES = 20_000
JOURNAL_MIB = 16

_STAMPS = (
    "InactiveExitTimestampMonotonic",
    "ActiveEnterTimestampMonotonic",
    "ActiveExitTimestampMonotonic",
    "InactiveEnterTimestampMonotonic",
)
_PROPERTIES = ("Id", "ActiveState", "Result", "After", *_STAMPS)
_USERSPACE = "UserspaceTimestampMonotonic"
_FIELD = re.compile(rb"[A-Z0-9_]{1,64}")
_READ_FIELDS = frozenset(
    [
        *(b"_BOOT_ID", b"__MONOTONIC_TIMESTAMP", b"__REALTIME_TIMESTAMP"),
        *(b"MESSAGE", b"MESSAGE_ID", b"SYSLOG_IDENTIFIER", b"UNIT"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class UnitTimes:
    """When a unit was last started, by systemd's timestamps in seconds of the monotonic clock."""

    name: str
    active: str
    result: str
    after: frozenset[str]
    """The units after which this unit starts, by this unit's `After=` or by their own `Before=`."""
    started_s: float | None
    """When the unit left its inactive state; None if it has not been started."""
    ready_s: float | None
    """When the start ended, with or without success; None if the unit is still starting."""


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """A journal entry with times in seconds; `boot` is the id of the boot that logged the entry.

    `fields` has only the journal fields in _READ_FIELDS.
    """

    boot: str
    monotonic_s: float
    wall_s: float
    fields: Mapping[str, str]


def history_request() -> EvidenceRequest:
    """Return the request for the commands and files that are gathered only after a failed test."""
    return EvidenceRequest(
        commands={
            # Without --all, systemctl leaves out oneshot units that have ended.
            UNIT_TIMES: ["systemctl", "show", "--all", f"--property={','.join(_PROPERTIES)}", "*"],
            MANAGER_TIMES: ["systemctl", "show", f"--property={_USERSPACE}"],
            UNIT_JOBS: unit_commands()[UNIT_JOBS],
            JOURNAL: [
                *("sh", "-c"),
                f"journalctl --no-pager -o export -n {JOURNAL_ENTRIES} | tail -c {JOURNAL_MIB}M",
            ],
            PACKAGES: ["dpkg-query", "--show", "--showformat", "${Package}\\t${Version}\\n"],
        },
        files=[UPTIME, *DKMS_LOGS],
        paths=[*DKMS_LOGS],
    )


def parse_unit_times(text: str) -> list[UnitTimes]:
    """Parse the output of `systemctl show`, which has a block for each unit.

    Raises HarnessError if a block lacks a property.
    """
    return [_unit(block) for block in re.split(r"\n\n+", text.strip()) if block]


def _unit(block: str) -> UnitTimes:
    values = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
    try:
        started, active, leaving, inactive = (int(values[name]) / 1e6 for name in _STAMPS)
        return UnitTimes(
            name=values["Id"],
            active=values["ActiveState"],
            result=values.get("Result", "success"),
            after=frozenset(values["After"].split()),
            started_s=started or None,
            # A oneshot unit, or a unit whose start fails, might not become active at all.
            ready_s=min(
                (each for each in (active, leaving, inactive) if each and each >= started),
                default=None,
            )
            if started
            else None,
        )
    except (KeyError, ValueError) as error:
        raise HarnessError(
            f"`systemctl show` printed a unit in an unknown format ({error!r}): {block[:500]!r}."
        ) from error


def parse_manager_times(text: str) -> float:
    """Return systemd's start time on the monotonic clock in s; raises HarnessError for an unknown format."""
    found = re.fullmatch(rf"{_USERSPACE}=(\d{{1,20}})", text.strip())
    if found is None:
        raise HarnessError(f"`systemctl show` printed no start time of systemd: {text[:200]!r}.")
    return int(found[1]) / 1e6


def parse_uptime(text: str) -> float:
    """Return the seconds since the boot, from `/proc/uptime`; raises HarnessError for an unknown format."""
    found = re.match(r"\d{1,15}(\.\d+)?\s", text)
    if found is None:
        raise HarnessError(f"'{UPTIME}' has an unknown format: {text[:80]!r}.")
    return float(found[0])


def parse_journal(content: bytes) -> list[JournalEntry]:
    """Return the entries of a journal in export format, oldest first; skip truncated entries.

    The page https://systemd.io/JOURNAL_EXPORT_FORMATS/#journal-export-format describes the export
    format.
    """
    # Gathering has the same limit, but evidence from another host may have millions of entries.
    found = itertools.islice(_entries(content), JOURNAL_ENTRIES)
    return [entry for fields in found if (entry := _entry(fields)) is not None]


def _entry(fields: Mapping[str, str]) -> JournalEntry | None:
    try:
        return JournalEntry(
            boot=fields["_BOOT_ID"],
            monotonic_s=_stamp(fields["__MONOTONIC_TIMESTAMP"]),
            wall_s=_stamp(fields["__REALTIME_TIMESTAMP"]),
            fields=fields,
        )
    except (KeyError, ValueError):
        return None


def _stamp(text: str) -> float:
    """Convert a 64-bit timestamp of the journal to seconds; raises ValueError for other text."""
    stamp = int(text)
    if not 0 <= stamp < 1 << 64:
        raise ValueError(text)
    return stamp / 1e6


def _entries(content: bytes) -> Iterator[dict[str, str]]:
    at, fields = 0, dict[str, str]()
    while at < len(content):
        end = content.find(b"\n", at)
        line = content[at:] if end < 0 else content[at:end]
        at = len(content) if end < 0 else end + 1
        name, separator, value = line.partition(b"=")
        if not line:
            yield fields
            fields = {}
        elif separator and _FIELD.fullmatch(name):
            _keep(fields, name, value)
        elif _FIELD.fullmatch(line) and at + 8 <= len(content):
            # A value with line breaks is preceded by its length.
            (length,) = struct.unpack_from("<Q", content, at)
            if at + 8 + length <= len(content):
                _keep(fields, line, content[at + 8 : at + 8 + length])
                at += 8 + length + 1
    yield fields


def _keep(fields: dict[str, str], name: bytes, value: bytes) -> None:
    if name in _READ_FIELDS:
        fields[name.decode()] = value.decode(errors="replace")


def parse_packages(text: str) -> dict[str, str]:
    """Return the version of each package by the package's name, from the output of `dpkg-query`."""
    pairs = (line.split("\t") for line in text.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[1]}
