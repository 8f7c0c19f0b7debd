"""A cache of published folders: lists, verifies and uses folders, and removes unused folders."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from harness import lease
from harness.artifact_cache import MIB, USED, DamagedError, allocated_bytes
from harness.artifact_cache.manifest import M
from harness.artifact_cache.removal import Removal
from harness.artifact_cache.store import ArtifactStore
from harness.provisioning.wait import Deadline, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from harness.artifact_cache import ArtifactSource
    from harness.artifact_cache.manifest import ManifestFormat
    from harness.artifact_cache.store import Guard

_USER_S = 10.0
_VERIFY_S = 60.0
_GATE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class CachedArtifact:
    """Describes a published folder to people. `damage` says why the folder must not be used.

    `parent` is the name of the folder whose disk is the backing file of this folder's disk.
    `size_mib` is the disk space that this folder's files occupy.
    """

    name: str
    key: str
    folder: Path
    parent: str | None
    size_mib: float
    created: str | None
    last_used: dt.datetime
    is_in_use: bool
    damage: str | None = None


class ArtifactCache(Generic[M]):
    """A cache in `folder` of published folders of one format. Many processes may use one cache.

    `store` makes and publishes the folders. `leftovers` names hidden folders of the store, from
    which `collect_unused` removes old files. If `is_gated`, the cache removes nothing while a
    folder is being published and opened. `ArtifactStore` describes the other parameters.
    """

    def __init__(
        self,
        folder: Path,
        *,
        manifests: ManifestFormat[M],
        clean: Callable[[Path], None] = shutil.rmtree,
        removing: Guard | None = None,
        is_gated: bool = False,
        leftovers: Sequence[str] = (),
        source: ArtifactSource | None = None,
    ) -> None:
        self._folder = folder
        self._manifests = manifests
        self._leftovers = leftovers
        self._shares: dict[Path, contextlib.ExitStack] = {}
        self.store = ArtifactStore(
            folder,
            noun=manifests.noun,
            clean=clean,
            removing=removing,
            publishing=(lambda _folder, _deadline: self._gate()) if is_gated else None,
            source=source,
        )

    def use(self, folder: Path) -> None:
        """Protect a folder from removal until `close`, and record the time of use."""
        used = folder / USED
        if folder in self._shares:
            if used.exists():
                return
            # Another process has replaced the folder; this process's lock is on the old folder.
            self._shares.pop(folder).close()
        # If the folder is missing, or is being removed, a later attempt to open it fails.
        with contextlib.suppress(FileNotFoundError, WaitTimeoutError):
            used.touch()
            holding = contextlib.ExitStack()
            holding.enter_context(lease.hold_shared(used, deadline=Deadline.after(_USER_S)))
            self._shares[folder] = holding

    def close(self) -> None:
        """Release every folder that `use` protects."""
        while self._shares:
            _, holding = self._shares.popitem()
            holding.close()

    def ls(self) -> list[CachedArtifact]:
        """Return the published folders, sorted by name. Read no files except manifests."""
        found = (self._describe(folder) for folder in self.store.published())
        return [artifact for artifact in found if artifact is not None]

    def verify(self) -> list[CachedArtifact]:
        """Read every file of every folder. Return the folders with the damage in each folder.

        Leave out folders that another process removes during the call.
        """
        verified = (
            dataclasses.replace(artifact, damage=self._damage_of(artifact.folder))
            for artifact in self.ls()
        )
        return [artifact for artifact in verified if artifact.folder.exists()]

    def collect_unused(self, unused: dt.timedelta, *, at: dt.datetime) -> list[Removal]:
        """Remove leftovers of killed processes, and folders not used since `at - unused`.

        A folder in use stays. A folder also stays if the disk of another folder needs it.
        """
        limit = at - unused
        days = f"{unused.total_seconds() / 86400:g} days"
        return [
            *self.store.sweep(),
            *self._remove_leftovers(limit, days),
            *self._remove(
                lambda artifact, _total_mib: artifact.last_used <= limit,
                reason=f"it was not used for {days}." if unused else "it is not in use.",
            ),
        ]

    def collect_to_limit(self, limit_mib: int) -> list[Removal]:
        """Remove the least recently used folders until the other folders take at most `limit_mib`.

        A folder in use stays. A folder also stays if the disk of another folder needs it.
        """
        return self._remove(
            lambda _artifact, total_mib: total_mib > limit_mib,
            reason=f"it is not in use, and the cache was larger than its limit of {limit_mib} MiB.",
        )

    def remove(self, chosen: Collection[Path]) -> list[Removal]:
        """Remove the `chosen` folders, and all folders whose disks are overlays on chosen disks.

        A folder in use stays. A folder also stays if its disk is needed by another folder that
        stays.
        """
        names = {folder.name for folder in chosen}
        artifacts = self.ls()
        while more := {each.folder.name for each in artifacts if each.parent in names} - names:
            names |= more
        return self._remove(
            lambda artifact, _total_mib: artifact.folder.name in names,
            reason="the command names it, or names an image or checkpoint on which it is based.",
        )

    def _remove(
        self, is_removable: Callable[[CachedArtifact, float], bool], *, reason: str
    ) -> list[Removal]:
        """Remove the folders for which `is_removable` is true, the least recently used first.

        `is_removable` is called with a folder, and with the total size of all folders that remain.
        """
        doomed: list[Path] = []
        removals: list[Removal] = []
        if not self._folder.is_dir():
            return removals
        with self._gate():
            staying = self.ls()
            candidates = sorted(staying, key=lambda artifact: artifact.last_used)
            while True:
                needed = {artifact.parent for artifact in staying}
                total_mib = sum(artifact.size_mib for artifact in staying)
                artifact = next(
                    (
                        each
                        for each in candidates
                        if each.folder.name not in needed and is_removable(each, total_mib)
                    ),
                    None,
                )
                if artifact is None:
                    break
                candidates.remove(artifact)
                with lease.try_exclusive(artifact.folder / USED) as is_unused:
                    if not is_unused:
                        continue
                    doomed.append(self.store.move_to_trash(artifact.folder))
                staying.remove(artifact)
                removals.append(
                    Removal(path=artifact.folder, size_mib=artifact.size_mib, reason=reason)
                )
        for folder in doomed:
            shutil.rmtree(folder, ignore_errors=True)
        return removals

    def _remove_leftovers(self, limit: dt.datetime, days: str) -> list[Removal]:
        removals: list[Removal] = []
        if not self._leftovers or not self._folder.is_dir():
            return removals
        with self._gate():
            if any(self.store.hidden_folder("work").iterdir()):
                # A process that is making a folder may be about to use one of these folders.
                return removals
            for name in self._leftovers:
                for path in sorted(self.store.hidden_folder(name).iterdir()):
                    try:
                        stat = path.stat()
                    except FileNotFoundError:  # another process has completed and renamed the file
                        continue
                    if dt.datetime.fromtimestamp(stat.st_mtime, tz=dt.timezone.utc) > limit:
                        continue
                    path.unlink(missing_ok=True)
                    removals.append(
                        Removal(
                            path=path,
                            size_mib=stat.st_blocks * 512 / MIB,
                            reason=f"it is in the folder '{name}' of temporary files, and was not changed for {days}.",
                        )
                    )
        return removals

    def _gate(self) -> contextlib.AbstractContextManager[None]:
        """Lock out other removals and publications, so that a new folder can't lose its parent."""
        return lease.hold(
            self.store.hidden_folder("locks") / "gate",
            timeout_s=_GATE_S,
            what=f"the lock of the {self._manifests.noun} cache",
        )

    def _describe(self, folder: Path) -> CachedArtifact | None:
        """Return a description for people, or None if another process removed the folder."""
        name, _, key = folder.name.rpartition("-")
        parent, created, damage = None, None, None
        try:
            manifest = self._manifests.read(folder)
        except DamagedError as error:
            damage = str(error)
        else:
            name, key, created = manifest.name, manifest.key, manifest.created
            parent = None if manifest.parent is None else manifest.parent.folder
        used = folder / USED
        try:
            last_used = (used if used.exists() else folder).stat().st_mtime
            with lease.try_exclusive(used) as is_unused:
                return CachedArtifact(
                    name=name,
                    key=key,
                    folder=folder,
                    parent=parent,
                    size_mib=allocated_bytes(folder) / MIB,
                    created=created,
                    last_used=dt.datetime.fromtimestamp(last_used, tz=dt.timezone.utc),
                    is_in_use=not is_unused,
                    damage=damage,
                )
        except FileNotFoundError:
            return None

    def _damage_of(self, folder: Path) -> str | None:
        manifests = self._manifests
        try:
            with contextlib.ExitStack() as sharing:
                with contextlib.suppress(FileNotFoundError):
                    sharing.enter_context(
                        lease.hold_shared(folder / USED, deadline=Deadline.after(_VERIFY_S))
                    )
                manifest = manifests.read(folder)
                manifests.check_structure(folder, manifest)
                manifests.check_digests(folder, manifest)
                if manifest.parent is not None:
                    manifests.check_pin(
                        folder, self._folder / manifest.parent.folder, manifest.parent
                    )
        except (DamagedError, WaitTimeoutError, FileNotFoundError) as error:
            return str(error)
        return None
