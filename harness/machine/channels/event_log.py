"""Records the events of a machine's QEMU, for waits and for evidence."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.limits import MACHINE_EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from harness.provisioning.wait import Deadline


_MOST_NAMED = 50


@dataclass(frozen=True, kw_only=True)
class QmpEvent:
    """One event that QEMU reported. `at_s` is QEMU's wall-clock time in seconds."""

    name: str
    at_s: float
    data: Mapping[str, object] = field(default_factory=dict)


class EventLog:
    """The events of one machine, oldest first. Any thread may add events or wait for them.

    A guest causes some events, such as resets. So the log has a limit. Beyond this limit, the log
    drops events, and each wait fails. `advice` ends the error of a failed wait, and says where
    to look for the reason.
    """

    def __init__(self, machine: str, *, advice: str) -> None:
        self._machine = machine
        self._advice = advice
        self._changed = threading.Condition()
        self._events: list[QmpEvent] = []
        self._ended: str | None = None
        self._is_full = False

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        with self._changed:
            return tuple(self._events)

    def add(self, event: QmpEvent) -> None:
        with self._changed:
            if len(self._events) < MACHINE_EVENTS.value:
                self._events.append(event)
            else:
                self._is_full = True
            self._changed.notify_all()

    def end(self, why: str = "") -> None:
        """Record that QEMU has ended, and the reason. Later reasons are ignored."""
        with self._changed:
            if self._ended is None:
                self._ended = why
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake the waiting threads, which then check again whether their wait has to end."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(
        self,
        what: str,
        matches: Callable[[QmpEvent], bool],
        deadline: Deadline,
        *,
        since: int = 0,
        loss: Callable[[str], HarnessError | None] = lambda _seen: None,
    ) -> QmpEvent:
        """Wait for an event that `matches`, at position `since` of `events` or later.

        Raises HarnessError at the deadline, or immediately if QEMU has ended. If the connection to
        QEMU is lost, raises the error that `loss` returns for the events seen so far.
        """
        with self._changed:
            while True:
                for event in self._events[since:]:
                    if matches(event):
                        return event
                seen = _names_of(self._events[since:])
                if self._is_full:
                    raise MACHINE_EVENTS.error(
                        f"Machine '{self._machine}'", remedy=f"The wait was for {what}."
                    )
                if error := loss(seen):
                    raise error
                if self._ended is not None:
                    why = f" ({self._ended})" if self._ended else ""
                    raise HarnessError(
                        f"QEMU of machine '{self._machine}' ended{why} during the wait for {what}; "
                        f"events seen: {seen}. {self._advice}"
                    )
                if deadline.has_passed():
                    raise HarnessError(
                        f"Machine '{self._machine}' did not report {what} in time; events "
                        f"seen: {seen}." + deadline.account()
                    )
                self._changed.wait(deadline.remaining_s())


def _names_of(events: Sequence[QmpEvent]) -> str:
    """Return the names of events for a message. If there are many, only the last names."""
    left_out = len(events) - _MOST_NAMED
    before = [f"{left_out} earlier"] if left_out > 0 else []
    return ", ".join([*before, *(event.name for event in events[-_MOST_NAMED:])]) or "no event"


def names(*wanted: str) -> Callable[[QmpEvent], bool]:
    """Return a function that matches events with any of these names."""
    return lambda event: event.name in wanted


def disk_failure(events: Iterable[QmpEvent], place: Path) -> str | None:
    """Return a sentence that says why QEMU could not write the disk at `place`, or None."""
    for event in events:
        if event.name == "BLOCK_IO_ERROR":
            reason = event.data.get("reason", "no reason given")
            return (
                f"QEMU could not write its disk ({reason}); free space on the file system of "
                f"'{place}'"
            )
    return None
