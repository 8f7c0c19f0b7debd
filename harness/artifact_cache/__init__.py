"""Caches of folders that are made once, published whole by a rename, and checked before each use.

A cache holds images or checkpoints, one folder for each key. A file lock for each key lets one
process make the folder, while others wait and name that process; the kernel releases the lock when
its holder dies. The manifest in a folder lists every file with its size and digest.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.progress import Progress
    from harness.provisioning.wait import Deadline

MANIFEST = "manifest.json"

DISK = "disk.qcow2"
"""The disk of a folder, if the folder has a disk; it is the backing file of derived folders' overlays."""

STAMP = "verified.json"
"""The file that records which files had the right digests, and the inode data at that time."""

USED = "used"
"""The file that users of a folder lock; its modification time is the time of the last use."""

KEY_DIGITS = 16
"""The number of a key's digits that are part of file names."""

MIB = 1 << 20


class DamagedError(HarnessError):
    """A folder differs from the published folder; it must not be used."""


class GoneError(DamagedError):
    """A folder was removed between finding it and opening it."""


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """The size and the digest of a published file."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ParentPin:
    """The exact disk below a derived folder's overlay.

    The digest is needed: a parent that was made again under the same key has other blocks, and an
    overlay on those blocks is corrupt.
    """

    folder: str
    key: str
    disk_sha256: str


@dataclass(frozen=True, kw_only=True)
class StagingFolder:
    """Where a folder is made: `content` will be published, `work` is for temporary files."""

    work: Path
    content: Path


class ArtifactSource(Protocol):
    """A source of folders that a cache lacks; the cache offers it each folder that it makes."""

    def fetch(
        self,
        name: str,
        into: Path,
        *,
        inputs: Mapping[str, object],
        progress: Progress,
        deadline: Deadline,
    ) -> bool:
        """Write the folder `name` to `into`; return whether that worked. Errors are only reported.

        Returns early enough to make the folder before the deadline.
        """
        ...

    def offer(self, folder: Path, *, progress: Progress) -> None:
        """Store a folder that was made here, for other hosts. Errors are only reported."""
        ...


def allocated_bytes(folder: Path) -> int:
    """Return the disk space of a folder's files; holes and files removed in between count as 0."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(top, name).lstat().st_blocks * 512
    return total


def now() -> str:
    """Return the current time in UTC, as manifests record it."""
    return dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
