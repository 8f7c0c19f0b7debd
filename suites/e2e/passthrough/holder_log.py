"""Judges the log of a competition for GPUs, which shows which process held which GPU, and when."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the log: `at` is the host's monotonic time, and `pid` the writing process."""

    at: float
    pid: int
    event: str
    addresses: tuple[str, ...] = ()
    competitor: int = 0
    error: str = ""

    @classmethod
    def from_json(cls, text: str) -> Line:
        fields = json.loads(text)
        return cls(
            at=float(fields["at"]),
            pid=int(fields["pid"]),
            event=str(fields["event"]),
            addresses=tuple(fields.get("addresses", ())),
            competitor=int(fields.get("competitor", 0)),
            error=str(fields.get("error", "")),
        )


@dataclass(frozen=True, kw_only=True)
class Hold:
    """The time in which a process held a GPU."""

    address: str
    pid: int
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the log shows; `faults` are sentences."""

    faults: tuple[str, ...]
    holds: tuple[Hold, ...]
    started: int
    killed: int
    killed_while_holding: int


def parse_log(text: str) -> list[Line]:
    return [Line.from_json(line) for line in text.splitlines() if line]


def judge(lines: Iterable[Line]) -> Verdict:
    """Judge the log lines of all users together.

    If a process is killed, its hold counts only until the kill begins. So the next holder of the
    GPU never counts as a second holder at the same time.
    """
    reader = _Reader()
    for line in sorted(lines, key=lambda each: each.at):
        reader.read(line)
    return reader.verdict()


@dataclass
class _Reader:
    faults: list[str] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    open_holds: dict[int, Line] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    killed_while_holding: int = 0

    def read(self, line: Line) -> None:
        match line.event:
            case "started":
                self.started.add(line.competitor)
            case "taken":
                self._take(line)
            case "leaving":
                if not self._close(line.pid, line.at):
                    self.faults.append(f"Process {line.pid} left GPUs that it did not hold.")
            case "killing":
                self.killed.add(line.competitor)
                self.killed_while_holding += self._close(line.competitor, line.at)
            case "ended":
                self.ended.add(line.pid)
            case "failed":
                self.ended.add(line.pid)
                self.faults.append(f"Process {line.pid} failed: {line.error}")
            case "killed" | "given-back" | "over":
                pass
            case _:
                self.faults.append(f"The log has an unknown event '{line.event}'.")

    def verdict(self) -> Verdict:
        left = sorted(self.started - self.ended - self.killed)
        return Verdict(
            faults=(
                *self.faults,
                *(f"Process {pid} still holds GPUs at the end." for pid in self.open_holds),
                *(f"Process {pid} neither ended nor was killed." for pid in left),
                *_overlaps(self.holds),
            ),
            holds=tuple(self.holds),
            started=len(self.started),
            killed=len(self.killed),
            killed_while_holding=self.killed_while_holding,
        )

    def _take(self, line: Line) -> None:
        if self._close(line.pid, line.at):
            self.faults.append(f"Process {line.pid} took GPUs while it held some.")
        self.open_holds[line.pid] = line

    def _close(self, pid: int, at: float) -> bool:
        """End the holds of a process; return whether the process held a GPU."""
        taken = self.open_holds.pop(pid, None)
        if taken is None:
            return False
        self.holds += [
            Hold(address=address, pid=pid, begin=taken.at, end=at) for address in taken.addresses
        ]
        return True


def _overlaps(holds: Sequence[Hold]) -> list[str]:
    faults = []
    last: dict[str, Hold] = {}
    for hold in sorted(holds, key=lambda each: each.begin):
        before = last.get(hold.address)
        if before is not None and hold.begin < before.end:
            faults.append(
                f"{hold.address} had two holders: process {before.pid} until {before.end:.3f} s, "
                f"and process {hold.pid} from {hold.begin:.3f} s."
            )
        if before is None or hold.end > before.end:
            last[hold.address] = hold
    return faults
