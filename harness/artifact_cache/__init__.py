"""Folders that are made once, published whole by a rename, and checked before each use.

A cache holds such folders, images or checkpoints, one for each key. A file lock for each key,
released by the kernel when its holder dies, lets one process make the folder while others wait
and name the process that they wait for. The manifest in a folder lists every file with its size
and digest.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST = "manifest.json"

DISK = "disk.qcow2"
"""The disk of a folder that has one; overlays of derived folders lie on it."""

STAMP = "verified.json"
"""Records which files had the right digests, and their inode data at that time."""

USED = "used"
"""Locked by the users of a folder; its modification time is that of the last use."""

KEY_DIGITS = 16
"""Digits of a key that file names contain."""

MIB = 1 << 20


class DamagedError(HarnessError):
    """A folder differs from what was published; it must not be used."""


class GoneError(DamagedError):
    """A folder was removed between finding it and opening it."""


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


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """The size and the digest of a published file."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ParentPin:
    """The exact disk that a derived folder's overlay lies on.

    The digest is needed: a parent that was made again under the same key has other blocks, and an
    overlay on those is corrupt.
    """

    folder: str
    key: str
    disk_sha256: str


@dataclass(frozen=True, kw_only=True)
class StagingFolder:
    """Where a folder is put together: `content` is what is published, `work` is scratch."""

    work: Path
    content: Path


class ArtifactSource(Protocol):
    """Where a cache gets folders that it lacks, and offers those that it made."""

    def fetch(
        self, name: str, into: Path, *, inputs: Mapping[str, object], progress: Progress
    ) -> bool:
        """Write the folder `name` to `into`; return whether that worked. Trouble is only reported."""
        ...

    def offer(self, folder: Path, *, progress: Progress) -> None:
        """Take a folder that was made here, for others. Trouble is only reported."""
        ...


def allocated_bytes(folder: Path) -> int:
    """Return the disk space of a folder's files; holes and files just removed count as 0."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(top, name).lstat().st_blocks * 512
    return total


def now() -> str:
    """Return the current time in UTC, as manifests record it."""
    return dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
