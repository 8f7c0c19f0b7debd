"""Checkpoints: saved states of machines, made once, from which any number of clones start.

A checkpoint is a folder with the machine's memory, QEMU's device state and a disk overlay. The key of a
checkpoint covers everything on which its bytes depend, including the parent's key. The manifest pins
the parent's disk by digest, since the parent's disk is the backing file of the overlay. A process that uses a
checkpoint holds a shared lock, which the kernel releases at the end of the process. A checkpoint
without a lock may be removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import lease
from harness.artifact_cache import DISK, KEY_DIGITS, USED, GoneError, ParentPin
from harness.artifact_cache.cache import ArtifactCache
from harness.artifact_cache.disk_space import DiskSpace, free_bytes
from harness.errors import BadInputError, HarnessError
from harness.machine.checkpoint.manifest import (
    CHECKPOINT_FORMAT,
    RAM,
    SCHEMA,
    STATE,
    write_manifest,
)
from harness.progress import Progress, Stage, ignore_progress
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from harness.artifact_cache import ArtifactSource, StagingFolder
    from harness.artifact_cache.cache import CachedArtifact
    from harness.artifact_cache.removal import Removal
    from harness.progress import ProgressListener
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline

RESERVE_MIB = 512
"""MiB to keep free in addition to a memory file and an overlay, each as large as the memory."""

_USERS_S = 60.0
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_REMEDY = (
    "free some space by `harness checkpoints gc --all`, or set XDG_CACHE_HOME to a folder on a larger "
    "disk"
)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A published state of a machine, whose files never change.

    Clones map `ram` privately. `state` is QEMU's device state. `disk` is a qcow2 overlay on the
    disk of the parent or of an image. `facts` are the values that `make` returned.
    """

    name: str
    key: str
    folder: Path
    parent: Checkpoint | None
    facts: Mapping[str, str]
    ram: Path
    state: Path
    disk: Path


@dataclass(frozen=True, kw_only=True)
class CheckpointPlace:
    """The paths of a new checkpoint's three files, and `folder` for scratch files.

    Publication moves the files but does not change their content.
    """

    ram: Path
    state: Path
    disk: Path
    folder: Path


def key_of(name: str, parts: Mapping[str, object], parent: Checkpoint | None) -> str:
    """Return the digest of everything on which a checkpoint's bytes depend."""
    inputs = {
        "schema": SCHEMA,
        "name": name,
        "parts": dict(parts),
        "parent": None if parent is None else parent.key,
    }
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class CheckpointStore:
    """Checkpoints below one folder. Many processes and threads may use one store.

    After each publication, and in `gc`, the least recently used checkpoints beyond `limit_mib` are
    removed. Checkpoints in use and the parents of remaining checkpoints are not
    removed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit_mib: int,
        free_bytes: Callable[[Path], int] = free_bytes,
        runner: Runner | None = None,
        source: ArtifactSource | None = None,
    ) -> None:
        self._folder = folder.absolute()
        self._limit_mib = limit_mib
        self._space = DiskSpace(self._folder, free=free_bytes, remedy=_REMEDY)
        self._runner = LocalRunner() if runner is None else runner
        self._cache = ArtifactCache(
            self._folder,
            manifests=CHECKPOINT_FORMAT,
            removing=_when_unused,
            is_gated=True,
            source=source,
        )

    @contextlib.contextmanager
    def use(
        self,
        name: str,
        parts: Mapping[str, object],
        make: Callable[[CheckpointPlace], Mapping[str, str]],
        *,
        memory_mib: int,
        parent: Checkpoint | None = None,
        deadline: Deadline,
        listener: ProgressListener = ignore_progress,
        cancelled: Callable[[], str | None] = lambda: None,
    ) -> Iterator[Checkpoint]:
        """Yield a checkpoint that is in use during the `with` block. Make a missing checkpoint.

        `parts` are JSON data, and name everything on which the checkpoint's bytes depend, except
        the parent. If there is no parent, `parts` include the digest of the image's disk. `make`
        brings a machine of `memory_mib` to the wanted state, writes the files to the given place, and
        returns facts for the manifest. The parent has to be in this store, and in use
        until this method yields.

        Raises any error of `make`, RequirementError if there is no space, and
        CheckpointDamagedError if the parent is damaged. Raises HarnessError if another process
        holds the lock beyond the deadline, or if `cancelled` returns a reason to stop.
        """
        if not _NAME.fullmatch(name):
            raise BadInputError(
                f"'{name}' is not a checkpoint name: use lower-case letters, digits, '.' and '-'.",
                source="CheckpointStore.use",
                key="name",
            )
        if parent is not None and parent.folder.parent != self._folder:
            raise BadInputError(
                f"The parent checkpoint is '{parent.folder}', which is not in the store '{self._folder}'.",
                source="CheckpointStore.use",
                key="parent",
            )
        key = key_of(name, parts, parent)
        folder = self._folder / f"{name}-{key[:KEY_DIGITS]}"
        what = f"checkpoint '{name}'"
        needed_mib = 2 * memory_mib + RESERVE_MIB
        progress = Progress(name, listener)
        is_made = False

        def opened() -> tuple[Checkpoint, contextlib.ExitStack]:
            with contextlib.ExitStack() as holding:
                checkpoint = self._open(folder, key, holding, deadline)
                return checkpoint, holding.pop_all()

        def fill(staging: StagingFolder) -> None:
            nonlocal is_made
            is_made = True
            scratch = staging.work / "scratch"
            scratch.mkdir(mode=0o700)
            with contextlib.ExitStack() as holding:
                pin = None
                if parent is not None:
                    self._open(parent.folder, parent.key, holding, deadline)
                    below = CHECKPOINT_FORMAT.read(parent.folder)
                    pin = ParentPin(
                        folder=parent.folder.name,
                        key=parent.key,
                        disk_sha256=below.files[DISK].sha256,
                    )
                self._space.require(what, needed_mib)
                progress.report(Stage.BUILD, "making it")
                with self._space.explain_full_disk(what, needed_mib, any_failure=True):
                    facts = make(
                        CheckpointPlace(
                            ram=staging.content / RAM,
                            state=staging.content / STATE,
                            disk=staging.content / DISK,
                            folder=scratch,
                        )
                    )
                    write_manifest(
                        staging.content,
                        folder=folder,
                        name=name,
                        key=key,
                        parts=parts,
                        pin=pin,
                        facts=facts,
                        runner=self._runner,
                        deadline=deadline,
                    )

        with contextlib.ExitStack() as holding:
            with self._space.explain_full_disk(what, needed_mib):
                checkpoint, held = self._cache.store.ensure(
                    folder,
                    opened=opened,
                    fill=fill,
                    progress=progress,
                    deadline=deadline,
                    unflushed={RAM},
                    cancelled=cancelled,
                    inputs=parts,
                )
            holding.push(held)
            if is_made:
                for removal in self._cache.collect_to_limit(self._limit_mib):
                    progress.report(
                        Stage.REMOVED, f"'{removal.path}' was removed: {removal.reason}"
                    )
            yield checkpoint

    @contextlib.contextmanager
    def hold(self, checkpoint: Checkpoint, *, deadline: Deadline) -> Iterator[None]:
        """Keep a checkpoint that `use` yielded, and its ancestors, in use until the context ends.

        The files are not read. Raises GoneError if the checkpoint was removed, and HarnessError if
        another process holds the lock beyond the deadline.
        """
        with contextlib.ExitStack() as holding:
            each: Checkpoint | None = checkpoint
            while each is not None:
                self._share(each.folder, holding, deadline)
                each = each.parent
            yield

    def ls(self) -> list[CachedArtifact]:
        """Return the published checkpoints, sorted by name. Read only their manifests."""
        return self._cache.ls()

    def verify(self) -> list[CachedArtifact]:
        """Read every file of every checkpoint. Return all checkpoints, with the damage found."""
        return self._cache.verify()

    def gc(self, limit_mib: int | None = None) -> list[Removal]:
        """Remove leftovers of killed processes, and the least recently used checkpoints beyond a limit.

        Without `limit_mib` the store's limit applies. 0 removes everything that is not in use.
        """
        limit = self._limit_mib if limit_mib is None else limit_mib
        return [*self._cache.store.sweep(), *self._cache.collect_to_limit(limit)]

    def remove(self, chosen: Collection[Path]) -> list[Removal]:
        """Remove these checkpoints and all checkpoints made from them. Checkpoints in use stay."""
        return self._cache.remove(chosen)

    def _open(
        self, folder: Path, key: str, holding: contextlib.ExitStack, deadline: Deadline
    ) -> Checkpoint:
        """Return an undamaged checkpoint. Lock it and its parents for use until `holding` ends."""
        self._share(folder, holding, deadline)
        manifest = CHECKPOINT_FORMAT.check(folder, key)
        parent = None
        if manifest.parent is not None:
            there = self._folder / manifest.parent.folder
            try:
                parent = self._open(there, manifest.parent.key, holding, deadline)
            except GoneError as error:
                raise CHECKPOINT_FORMAT.orphaned(folder, there) from error
            CHECKPOINT_FORMAT.check_pin(folder, there, manifest.parent)
        return Checkpoint(
            name=manifest.name,
            key=manifest.key,
            folder=folder,
            parent=parent,
            facts=manifest.facts,
            ram=folder / RAM,
            state=folder / STATE,
            disk=folder / DISK,
        )

    def _share(self, folder: Path, holding: contextlib.ExitStack, deadline: Deadline) -> None:
        """Hold a checkpoint's shared lock until `holding` ends, and record the checkpoint's use."""
        used = folder / USED
        try:
            holding.enter_context(lease.hold_shared(used, deadline=deadline))
            os.utime(used)
        except FileNotFoundError as error:
            if not folder.exists():
                raise GoneError(f"The checkpoint in '{folder}' was removed.") from error
            raise CHECKPOINT_FORMAT.without_lock_file(folder) from error
        except WaitTimeoutError as error:
            raise HarnessError(str(error)) from error


@contextlib.contextmanager
def _when_unused(folder: Path, deadline: Deadline) -> Iterator[None]:
    """Wait until no process uses a damaged checkpoint, and lock it until the context ends.

    Clones that started before the damage may continue. But no new checkpoint may replace the
    damaged one before those clones end: a child's overlay would then have wrong blocks in its
    backing file.
    """
    with contextlib.ExitStack() as holding:

        def try_alone() -> Observation[bool]:
            with contextlib.ExitStack() as attempt:
                if attempt.enter_context(lease.try_exclusive(folder / USED)):
                    holding.push(attempt.pop_all())
                    return Observation(True, "unused")
            return Observation(None, "in use")

        try:
            wait_for("its users", try_alone, deadline.sooner(_USERS_S))
        except WaitTimeoutError as error:
            raise HarnessError(
                f"The checkpoint in '{folder}' is damaged but still in use, so it can't be made "
                f"again; end the processes that use it (`fuser '{folder / USED}'` names them)."
            ) from error
        yield
