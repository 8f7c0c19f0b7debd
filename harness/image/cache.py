"""What lies in a cache of images: shown, read whole, and removed when nobody needs it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from harness import lease
from harness.image.manifest import DISK
from harness.provisioning.wait import Deadline, WaitTimeoutError
from harness.published import DamagedError, FileFact, ParentPin, allocated_bytes
from harness.published.removal import Removal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.published.kind import Kind
    from harness.published.shelf import Shelf

USED = "used"
"""Locked by those who use an image; its time of change tells when one last began to."""

_REMOVER_S = 10.0
_GATE_S = 60.0
MIB = 1 << 20


class CachedManifest(Protocol):
    """What the manifests of built and of stock images have in common."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def parent(self) -> ParentPin | None: ...
    @property
    def files(self) -> Mapping[str, FileFact]: ...


M = TypeVar("M", bound=CachedManifest)


@dataclass(frozen=True, kw_only=True)
class CachedImage:
    """What is shown of an image in the cache; `trouble` is why it would be refused.

    `parent` is the name of the folder whose disk it lies on, `size_mib` what the files take.
    """

    name: str
    key: str
    folder: Path
    parent: str | None
    size_mib: float
    last_used: dt.datetime
    is_in_use: bool
    trouble: str | None = None


class ImageCache(Generic[M]):
    """The published images of one shelf; `leavings` are its hidden folders with other files."""

    def __init__(
        self, folder: Path, *, kind: Kind[M], shelf: Shelf, leavings: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._kind = kind
        self._shelf = shelf
        self._leavings = leavings
        self._shares: dict[Path, contextlib.ExitStack] = {}

    def private(self, name: str) -> Path:
        return self._shelf.private(name)

    def use(self, folder: Path) -> None:
        """Keep an image from being removed until `close`, and note that it was used."""
        used = folder / USED
        if folder in self._shares:
            if used.exists():
                return
            # It was made again meanwhile; the share is one in the folder that is gone.
            self._shares.pop(folder).close()
        # Whoever finds it gone, or going, refuses or makes it by its own rules.
        with contextlib.suppress(FileNotFoundError, WaitTimeoutError):
            used.touch()
            holding = contextlib.ExitStack()
            holding.enter_context(lease.share(used, deadline=Deadline.after(_REMOVER_S)))
            self._shares[folder] = holding

    def close(self) -> None:
        """Let go of every image."""
        while self._shares:
            _, holding = self._shares.popitem()
            holding.close()

    def ls(self) -> list[CachedImage]:
        """Return what is published, by the folder's name."""
        found = (self._look(folder) for folder in self._shelf.published())
        return [image for image in found if image is not None]

    def verify(self) -> list[CachedImage]:
        """Read every file of every image; those that would be refused say why."""
        return [
            dataclasses.replace(image, trouble=self._trouble_of(image.folder))
            for image in self.ls()
        ]

    def gc(self, unused: dt.timedelta, *, at: dt.datetime) -> list[Removal]:
        """Remove what nobody used for `unused` before `at`, and what others left half-done.

        An image in use stays, as does one on whose disk another one lies.
        """
        removals = [
            Removal(path=work, size_mib=size / MIB, reason="its maker is dead.")
            for work, size in self._shelf.sweep()
        ]
        if not self._folder.is_dir():
            return removals
        limit = at - unused
        days = f"{unused.total_seconds() / 86400:g} days"
        with lease.hold(
            self.private("locks") / "gate", timeout_s=_GATE_S, what="the gate of the image cache"
        ):
            removals += self._remove_leavings(limit, days)
            removals += self._remove_unused(limit, days)
        return removals

    def _remove_unused(self, limit: dt.datetime, days: str) -> list[Removal]:
        removals: list[Removal] = []
        staying = self.ls()
        while True:
            needed = {image.parent for image in staying}
            going = [
                image
                for image in staying
                if image.last_used <= limit
                and not image.is_in_use
                and image.folder.name not in needed
            ]
            if not going:
                return removals
            for image in going:
                staying.remove(image)
                with lease.sole(image.folder / USED) as is_alone:
                    if not is_alone:
                        continue
                    doomed = self._shelf.take_away(image.folder)
                shutil.rmtree(doomed, ignore_errors=True)
                removals.append(
                    Removal(
                        path=image.folder,
                        size_mib=image.size_mib,
                        reason=f"nobody used it for {days}.",
                    )
                )

    def _remove_leavings(self, limit: dt.datetime, days: str) -> list[Removal]:
        if any(self.private("work").iterdir()):
            # Somebody is making an image right now, and may be about to use one of these.
            return []
        removals = []
        for name in self._leavings:
            for path in sorted(self.private(name).iterdir()):
                stat = path.stat()
                if dt.datetime.fromtimestamp(stat.st_mtime, tz=dt.timezone.utc) <= limit:
                    path.unlink(missing_ok=True)
                    removals.append(
                        Removal(
                            path=path,
                            size_mib=stat.st_blocks * 512 / MIB,
                            reason=f"it is {name}, and {days} old.",
                        )
                    )
        return removals

    def _look(self, folder: Path) -> CachedImage | None:
        name, _, key = folder.name.rpartition("-")
        parent, trouble = None, None
        try:
            manifest = self._kind.read(folder)
        except DamagedError as error:
            trouble = str(error)
        else:
            name, key = manifest.name, manifest.key
            parent = None if manifest.parent is None else manifest.parent.folder
        used = folder / USED
        try:
            last_used = (used if used.exists() else folder).stat().st_mtime
            with lease.sole(used) as is_alone:
                return CachedImage(
                    name=name,
                    key=key,
                    folder=folder,
                    parent=parent,
                    size_mib=allocated_bytes(folder) / MIB,
                    last_used=dt.datetime.fromtimestamp(last_used, tz=dt.timezone.utc),
                    is_in_use=not is_alone,
                    trouble=trouble,
                )
        except FileNotFoundError:
            return None

    def _trouble_of(self, folder: Path) -> str | None:
        try:
            manifest = self._kind.read(folder)
            self._kind.check_sizes(folder, manifest)
            self._kind.check_digests(folder, manifest)
            if manifest.parent is not None:
                there = self._folder / manifest.parent.folder
                self._kind.check_pin(folder, there, manifest.parent, disk=DISK)
        except DamagedError as error:
            return str(error)
        except FileNotFoundError:
            return f"The image in '{folder}' was removed meanwhile."
        return None
