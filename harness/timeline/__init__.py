"""The timeline of a machine as plain values: when work ran, for what the work waited, and the critical path.

Times are seconds since the kernel started in the first boot that the timeline shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Lane(Enum):
    """The kinds of work on a timeline, outermost first: for example, provisioning steps contain DKMS builds."""

    UNITS = "systemd unit"
    STEPS = "provisioning step"
    DKMS = "DKMS build"
    CONTAINERS = "container"
    CONSOLE = "serial console"


class SpanState(Enum):
    """How a piece of work ended."""

    DONE = "done"
    FAILED = "failed"
    RUNNING = "running"
    WAITING = "waiting"


@dataclass(frozen=True, kw_only=True)
class Span:
    """One piece of work; unfinished work lasts until the end of the timeline."""

    lane: Lane
    name: str
    start_s: float
    end_s: float
    state: SpanState = SpanState.DONE
    detail: str | None = None
    blockers: tuple[str, ...] = ()
    """The names of the last pieces of work for which this piece waited before it began."""
    blocked_from_s: float | None = None
    """The time since which the work waited only for its blockers."""
    is_critical: bool = False

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def blocked_s(self) -> float:
        """Return for how many seconds the work waited only for its blockers."""
        return 0.0 if self.blocked_from_s is None else self.start_s - self.blocked_from_s


@dataclass(frozen=True, kw_only=True)
class Moment:
    """An event without a duration, such as a reboot."""

    at_s: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A part of the evidence that could not be read, and the reason."""

    what: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """All known facts about one machine, in order of time."""

    title: str
    end_s: float
    spans: tuple[Span, ...]
    moments: tuple[Moment, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def critical_path(self) -> tuple[Span, ...]:
        """Return the work on the critical path, in order of time."""
        return tuple(span for span in self.spans if span.is_critical)


def seconds(value: float) -> str:
    """Return a duration with its unit, rounded to a useful number of digits."""
    if value >= 100:
        return f"{value:.0f} s"
    return f"{value:.1f} s" if value >= 0.05 else f"{1000 * value:.0f} ms"
