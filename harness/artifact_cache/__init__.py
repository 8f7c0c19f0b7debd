"""Caches of folders. A folder is made once, published by a rename, and checked before each use.

A cache contains images or checkpoints, one folder for each key. Each key has a file lock. The
process that gets the lock makes the folder. The other processes wait, and report which process
makes the folder. The kernel releases the lock when that process dies. The manifest in a folder
lists the size and the digest of every file.
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
"""The name of a folder's disk, which is the backing file of the overlays in derived folders."""

STAMP = "verified.json"
"""The file that records the inode data of the folder's files when their digests were verified."""

USED = "used"
"""The file that each process locks while it uses the folder. The mtime of this file is the time of last use."""

KEY_DIGITS = 16
"""The number of digits of a key in the names of files and folders."""

MIB = 1 << 20


class DamagedError(HarnessError):
    """A folder's content differs from what was published, so the folder must not be used."""


class GoneError(DamagedError):
    """A folder was found, but was removed before it could be opened."""


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """The size in bytes and the digest of a file at the time of its publication."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ParentPin:
    """Identifies the disk that a derived folder's overlay is based on.

    The key alone does not identify the disk. If the parent is made again under the same key, its
    new disk has other blocks, and an overlay on the new disk would be corrupt.
    """

    folder: str
    key: str
    disk_sha256: str


@dataclass(frozen=True, kw_only=True)
class StagingFolder:
    """The folder in which `content` is made before it is published. `work` is for temporary files."""

    work: Path
    content: Path


class ArtifactSource(Protocol):
    """Provides folders that a cache lacks, and may store new folders of the cache."""

    def fetch(
        self,
        name: str,
        into: Path,
        *,
        inputs: Mapping[str, object],
        progress: Progress,
        deadline: Deadline,
    ) -> bool:
        """Write the folder `name` to `into`. Return whether the whole folder was written.

        Report errors, and never raise them. Return early enough for the caller to make the folder
        before the deadline.
        """
        ...

    def offer(self, folder: Path, *, progress: Progress) -> None:
        """Store a folder that this host made, so that other hosts can use it.

        Report errors, and never raise them.
        """
        ...


def allocated_bytes(folder: Path) -> int:
    """Return the disk space that a folder's files occupy, in bytes. A hole occupies no space."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(top, name).lstat().st_blocks * 512
    return total


def now() -> str:
    """Return the current time in UTC, in the format that manifests use."""
    return dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
