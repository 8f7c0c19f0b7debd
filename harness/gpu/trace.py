"""Records the accesses of a guest to a device in bounded memory, and returns them as a snapshot."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from typing_extensions import override

if TYPE_CHECKING:
    from harness.provisioning.wait import Clock

DEFAULT_CAPACITY = 1024
#: The number of bytes that a line shows of a longer value: the lowest bytes.
_SHOWN_BYTES = 8


class AccessKind(enum.Enum):
    CONFIG_READ = "config read"
    CONFIG_WRITE = "config write"
    BAR_READ = "BAR read"
    BAR_WRITE = "BAR write"

    @property
    def is_config(self) -> bool:
        return self in {AccessKind.CONFIG_READ, AccessKind.CONFIG_WRITE}


class IncidentKind(enum.Enum):
    RESET = "reset"
    FELL_OFF_BUS = "fell off the bus"
    RETURNED_TO_BUS = "returned to the bus"
    DIED = "died: its BARs no longer answer"
    XID_RAISED = "raised an Xid"
    MARK = "mark"
    STALL_BEGAN = "stall began"
    STALL_ENDED = "stall ended"
    DRIVER_REFUSED = "refused the driver"
    COMMAND_UNKNOWN = "was sent a command that nobody knows"


class Stray(enum.Enum):
    """The value of `Access.bar` if no BAR claimed the access."""

    NO_BAR = "no BAR"


NO_BAR = Stray.NO_BAR
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Access:
    """One access by the guest.

    `at_s` is monotonic time in seconds. `sequence` counts all entries of the trace from 0. `bar` is
    None for configuration space. If no BAR claimed the access, `bar` is NO_BAR and `offset` is the
    address. `value` is the value that was read or written.
    """

    sequence: int
    at_s: float
    kind: AccessKind
    bar: int | Stray | None
    offset: int
    size: int
    value: int

    @override
    def __str__(self) -> str:
        place = "" if self.bar is None else f" {getattr(self.bar, 'value', self.bar)}"
        arrow = "->" if self.kind in {AccessKind.CONFIG_READ, AccessKind.BAR_READ} else "<-"
        digits = f"{self.value:0{2 * self.size}x}"
        if self.size > _SHOWN_BYTES:
            digits = f"...{digits[-2 * _SHOWN_BYTES :]} ({self.size} bytes)"
        return f"{self.kind.value}{place} {self.offset:#x} {arrow} 0x{digits}"


@dataclass(frozen=True, kw_only=True)
class Incident:
    """An event that concerns the whole device, or a mark that the test added."""

    sequence: int
    at_s: float
    kind: IncidentKind
    words: str | None = None

    @override
    def __str__(self) -> str:
        return f"-- {self.kind.value}" + ("" if self.words is None else f": {self.words}")


@dataclass(frozen=True, kw_only=True)
class AccessTrace:
    """A snapshot of the recorded entries, oldest first.

    The recorder keeps the oldest and the newest entries separately for configuration space and for
    each BAR. So the first and the last access are never dropped, and an empty list means that there
    were no accesses. `dropped` counts the entries that were not kept, including
    `dropped_incidents`.
    """

    accesses: tuple[Access, ...]
    incidents: tuple[Incident, ...]
    dropped: int
    dropped_incidents: int = 0

    def bar_accesses(self, bar: int | Stray | None = None) -> tuple[Access, ...]:
        """Return the accesses to `bar`; without `bar`, the accesses to any BAR and the stray accesses."""
        return tuple(
            access
            for access in self.accesses
            if not access.kind.is_config and bar in (None, access.bar)
        )

    def config_accesses(self) -> tuple[Access, ...]:
        """Return the accesses to configuration space."""
        return tuple(access for access in self.accesses if access.kind.is_config)

    def resets(self) -> tuple[Incident, ...]:
        """Return the resets that the guest or its firmware requested."""
        return self.incidents_of(IncidentKind.RESET)

    def incidents_of(self, kind: IncidentKind) -> tuple[Incident, ...]:
        """Return the incidents of one kind."""
        return tuple(incident for incident in self.incidents if incident.kind is kind)

    def find_mark(self, words: str) -> Incident | None:
        """Return the first mark that contains `words`, or None."""
        marks = self.incidents_of(IncidentKind.MARK)
        return next((mark for mark in marks if words in (mark.words or "")), None)

    def around(self, incident: Incident, entries: int) -> AccessTrace:
        """Return an incident with the `entries` entries before it and after it."""
        first, last = incident.sequence - entries, incident.sequence + entries
        return AccessTrace(
            accesses=tuple(one for one in self.accesses if first <= one.sequence <= last),
            incidents=tuple(one for one in self.incidents if first <= one.sequence <= last),
            dropped=self.dropped,
            dropped_incidents=self.dropped_incidents,
        )

    def render(self) -> str:
        """Render one line for each entry, with milliseconds since the first entry."""
        entries: list[Access | Incident] = sorted(
            (*self.accesses, *self.incidents), key=lambda entry: entry.sequence
        )
        lines: list[str] = []
        expected = entries[0].sequence if entries else 0
        for entry in entries:
            if entry.sequence != expected:
                lines.append(f"{'':>12} ({entry.sequence - expected} entries not shown)")
            lines.append(f"{(entry.at_s - entries[0].at_s) * 1000:>9.1f} ms {entry}")
            expected = entry.sequence + 1
        return "".join(f"{line}\n" for line in lines)


class _BoundedLog(Generic[T]):
    """Keeps the first and the last `half` entries, and counts all entries."""

    __slots__ = ("_half", "count", "head", "tail")

    def __init__(self, half: int) -> None:
        self._half = half
        self.count = 0
        self.head: list[T] = []
        self.tail: deque[T] = deque(maxlen=half)

    def append(self, entry: T) -> None:
        self.count += 1
        if len(self.head) < self._half:
            self.head.append(entry)
        else:
            self.tail.append(entry)

    def kept(self) -> list[T]:
        return [*self.head, *self.tail]

    @property
    def dropped(self) -> int:
        return self.count - len(self.head) - len(self.tail)


class TraceRecorder:
    """Records entries for `snapshot`; the device that owns the recorder serialises the calls.

    At most `capacity` entries are kept for configuration space, for each BAR, for stray accesses and
    for incidents.
    """

    def __init__(self, clock: Clock, capacity: int = DEFAULT_CAPACITY) -> None:
        self._clock = clock
        self._half = max(1, capacity // 2)
        self._sequence = 0
        # Entries are plain tuples: a guest's vCPU waits while an entry is made, and a tuple is
        # made quickly. While a snapshot is made, only the test waits.
        self._accesses: dict[
            int | Stray | None, _BoundedLog[tuple[int, float, AccessKind, int, int, int]]
        ] = {}
        self._incidents: _BoundedLog[Incident] = _BoundedLog(self._half)

    def access(
        self, kind: AccessKind, bar: int | Stray | None, offset: int, size: int, value: int
    ) -> None:
        """Record one access."""
        log = self._accesses.get(bar)
        if log is None:
            log = self._accesses[bar] = _BoundedLog(self._half)
        log.append((self._sequence, self._clock.monotonic(), kind, offset, size, value))
        self._sequence += 1

    def incident(self, kind: IncidentKind, words: str | None = None) -> None:
        """Record one incident."""
        self._incidents.append(
            Incident(sequence=self._sequence, at_s=self._clock.monotonic(), kind=kind, words=words)
        )
        self._sequence += 1

    def snapshot(self) -> AccessTrace:
        """Return the entries that were recorded so far."""
        accesses = [
            Access(
                sequence=sequence,
                at_s=at_s,
                kind=kind,
                bar=bar,
                offset=offset,
                size=size,
                value=value,
            )
            for bar, log in self._accesses.items()
            for sequence, at_s, kind, offset, size, value in log.kept()
        ]
        accesses.sort(key=lambda access: access.sequence)
        return AccessTrace(
            accesses=tuple(accesses),
            incidents=tuple(self._incidents.kept()),
            dropped=self._incidents.dropped + sum(log.dropped for log in self._accesses.values()),
            dropped_incidents=self._incidents.dropped,
        )
