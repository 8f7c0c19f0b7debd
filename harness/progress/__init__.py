"""Progress events: library code sends them to listeners, and the listeners show them to people."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Stage(Enum):
    """The kind of an activity of a cache or a machine. The value of a member is the word in the output."""

    PLAN = "plan"
    """The list of artifacts that the run will make, which is always printed."""
    CHECK = "check"
    WAIT = "wait"
    BUILD = "build"
    FETCH = "fetch"
    PUBLISH = "publish"
    READY = "ready"
    REFUSED = "refused"
    REMOVED = "removed"
    BUSY = "busy"
    """A machine is busy with work that may take long."""
    RUNS = "runs"
    """A machine is ready, and its test uses the machine."""
    CONSOLE = "console"
    """The output of a machine's console during a long wait."""
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class ProgressEvent:
    """An event about the image or machine `subject`. `message` is a sentence for people.

    `until` is the deadline of a wait, in seconds since the epoch.
    """

    subject: str
    stage: Stage
    message: str
    until: float | None = None


class ProgressListener(Protocol):
    """Receives progress events. Library code itself never prints an event."""

    def __call__(self, event: ProgressEvent, /) -> None: ...


def ignore_progress(_event: ProgressEvent, /) -> None:
    """Discard an event."""


@dataclass(frozen=True)
class Progress:
    """Sends events about one subject to a listener."""

    subject: str
    listener: ProgressListener = ignore_progress

    def report(self, stage: Stage, message: str) -> None:
        self.listener(ProgressEvent(subject=self.subject, stage=stage, message=message))


def clock_time(at: float) -> str:
    """Return the local time of day, from seconds since the epoch."""
    return dt.datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


def deadline_words(until: float | None, now: float) -> str:
    """Return the words that name the deadline `until` at the end of a sentence, or "" for None.

    A wait may continue after `until`, because deadlines do not count the time in which the host
    keeps the machine waiting.
    """
    if until is None:
        return ""
    if until < now:
        return f", past {clock_time(until)}, since the host keeps the machine waiting"
    return f", until {clock_time(until)} at most"
