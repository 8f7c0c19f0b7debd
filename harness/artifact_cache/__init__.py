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
"""The disk in a folder, if any; the overlays of derived folders have this disk as backing file."""

STAMP = "verified.json"
"""The file that records the inode data of the folder's files when their digests were verified."""

USED = "used"
"""The file that users of a folder lock; its modification time is the time of the last use."""

KEY_DIGITS = 16
"""How many digits of a key are part of file names."""

MIB = 1 << 20


class DamagedError(HarnessError):
    """A folder differs from the folder that was published, so it must not be used."""


class GoneError(DamagedError):
    """A folder was found, but was removed before it could be opened."""


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """The size and the digest of a published file."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ParentPin:
    """Identifies the disk that a derived folder's overlay is based on.

    The digest is needed: a parent that was made again under the same key has other blocks, and an
    overlay on those blocks would be corrupt.
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
    """Provides folders that a cache lacks, and may store folders that the cache offers."""

    def fetch(
        self,
        name: str,
        into: Path,
        *,
        inputs: Mapping[str, object],
        progress: Progress,
        deadline: Deadline,
    ) -> bool:
        """Write the folder `name` to `into`; return whether that worked. Report errors, never raise.

        Returns early enough for the caller to make the folder before the deadline.
        """
        ...

    def offer(self, folder: Path, *, progress: Progress) -> None:
        """Store a folder that was made here, for other hosts. Report errors, never raise them."""
        ...


def allocated_bytes(folder: Path) -> int:
    """Return the disk space that a folder's files take; holes, and files that vanish, count as 0."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(top, name).lstat().st_blocks * 512
    return total


def now() -> str:
    """Return the current time in UTC, in the format of manifests."""
    return dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
