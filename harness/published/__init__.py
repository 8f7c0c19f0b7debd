"""Folders made once by whoever comes first, published whole by a rename, checked before each use.

A store of such folders, be they images or checkpoints, keeps one for each key. A lock for each
key, void when its holder dies, lets one process make it while the others wait and say for whom.
What is in a folder stands in its manifest, with every file's size and digest.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from harness.errors import HarnessError

MANIFEST = "manifest.json"

STAMP = "verified.json"
"""Says which files' digests were right, and what the files looked like then."""

KEY_DIGITS = 16
"""Digits of a key that file names carry."""


class DamagedError(HarnessError):
    """A folder is not what was published; nobody may use it."""


class GoneError(DamagedError):
    """A folder was taken away, in good order, between looking for it and opening it."""


class Stage(Enum):
    """What a folder is going through; the value is the word shown to people."""

    CHECK = "check"
    WAIT = "wait"
    BUILD = "build"
    FETCH = "fetch"
    PUBLISH = "publish"
    READY = "ready"
    REFUSED = "refused"
    REMOVED = "removed"


class Teller(Protocol):
    """Receives what happens to one folder, as a sentence for people."""

    def __call__(self, stage: Stage, message: str, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """What a published file has to be."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ParentPin:
    """The very disk that a derived folder's overlay lies on.

    The digest counts: a parent that was made again under the same key has other blocks, and an
    overlay on those is rubbish.
    """

    folder: str
    key: str
    disk_sha256: str


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where a folder is put together: `content` is what is published, `work` is scratch."""

    work: Path
    content: Path


def allocated_bytes(folder: Path) -> int:
    """Return what a folder's files take on the disk: holes take nothing, nor do those just gone."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(top, name).lstat().st_blocks * 512
    return total


def now() -> str:
    return dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
