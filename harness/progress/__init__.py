"""What the harness does now: events that library code sends, for those who show them to people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Stage(Enum):
    """What happens to a folder; the value is the word shown to people."""

    CHECK = "check"
    WAIT = "wait"
    BUILD = "build"
    FETCH = "fetch"
    PUBLISH = "publish"
    READY = "ready"
    REFUSED = "refused"
    REMOVED = "removed"


@dataclass(frozen=True, kw_only=True)
class ProgressEvent:
    """One thing that happened to `subject`, such as an image, as a sentence for people."""

    subject: str
    stage: Stage
    message: str


class ProgressListener(Protocol):
    """Receives progress events; library code never prints them itself."""

    def __call__(self, event: ProgressEvent, /) -> None: ...


def ignore_progress(_event: ProgressEvent, /) -> None:
    """Discard an event."""


@dataclass(frozen=True)
class Progress:
    """Sends the events of one subject to a listener."""

    subject: str
    listener: ProgressListener = ignore_progress

    def report(self, stage: Stage, message: str) -> None:
        self.listener(ProgressEvent(subject=self.subject, stage=stage, message=message))
