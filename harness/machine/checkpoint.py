"""Checkpoints: published states of machines, made once, that any number of clones begin from.

A checkpoint is a folder with the machine's memory, QEMU's device state and a disk overlay. Its
key covers all that its bytes depend on, its parent's key included; its manifest pins the very
disk of the parent that its own overlay lies on. Whoever uses one holds a share in it, which the
kernel drops with the process: what nobody shares may be evicted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from harness import lease
from harness.errors import BadInputError, HarnessError
from harness.machine.sealed import (
    DISK,
    KIND,
    RAM,
    SCHEMA,
    STATE,
    USED,
    CheckpointDamagedError,
    Manifest,
    look,
    seal,
)
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for
from harness.published import (
    KEY_DIGITS,
    DamagedError,
    GoneError,
    ParentPin,
    Stage,
)
from harness.published.removal import Removal
from harness.published.shelf import Shelf
from harness.published.space import Space, free_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from harness.machine.sealed import CheckpointInfo
    from harness.provisioning.command import Runner
    from harness.published import Workplace

MIB = 1 << 20

RESERVE_MIB = 512
"""What has to stay free beside a memory file and an overlay that may both grow to memory's size."""

_GATE_S = 60.0
_READERS_S = 60.0
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent:
    """One thing that happened to a checkpoint, as a sentence for people."""

    checkpoint: str
    stage: Stage
    message: str


class CheckpointListener(Protocol):
    """Receives what happens; the caller prints, nobody here does."""

    def __call__(self, event: CheckpointEvent, /) -> None: ...


def ignore_events(_event: CheckpointEvent, /) -> None:
    """Listen to nothing."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A published state of a machine; its files never change.

    `ram` is mapped privately by clones, `state` is QEMU's device state, and `disk` is a qcow2
    overlay on the parent's disk or an image's. `facts` are what its maker had to say.
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
    """Where a checkpoint is made: its three files are to be left there; `folder` is scratch.

    The files' paths change when it is published, those that they contain do not.
    """

    ram: Path
    state: Path
    disk: Path
    folder: Path


def key_of(name: str, parts: Mapping[str, object], parent: Checkpoint | None) -> str:
    """Return the digest of all that a checkpoint's bytes depend on."""
    told = {
        "schema": SCHEMA,
        "name": name,
        "parts": dict(parts),
        "parent": None if parent is None else parent.key,
    }
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class CheckpointStore:
    """Checkpoints below one folder; many processes and threads may use one store.

    Beyond `limit_mib` the least recently used ones go, after each publication and in `gc`; never
    one that is in use, nor the parent of one that stays.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit_mib: int,
        free_bytes: Callable[[Path], int] = free_bytes,
        runner: Runner | None = None,
    ) -> None:
        self._folder = folder.absolute()
        self._limit_mib = limit_mib
        self._space = Space(self._folder, free=free_bytes, remedy=_REMEDY)
        self._runner = LocalRunner() if runner is None else runner
        self._shelf = Shelf(
            self._folder,
            noun="checkpoint",
            removing=self._when_unused,
            publishing=lambda _folder, _deadline: self._gate(),
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
        listener: CheckpointListener = ignore_events,
        trouble: Callable[[], str | None] = lambda: None,
    ) -> Iterator[Checkpoint]:
        """Give the checkpoint, which nobody removes until the context ends; make it if need be.

        `parts` are data, as JSON has it, that name all that its bytes depend on beside the
        parent; for one without a parent the digest of the disk below is among them. `make` brings a machine of `memory_mib` to the state wanted, leaves the files in
        the place it is given, and returns facts for the manifest. The parent has to be in use by
        the caller, in this very store.

        Raises RequirementError where there is no space, CheckpointDamagedError where the parent
        is damaged, HarnessError where another process holds the checkpoint beyond the deadline or
        until `trouble` says why nobody wants it any more, and whatever `make` raises.
        """
        if not _NAME.fullmatch(name):
            raise BadInputError(
                f"'{name}' is no checkpoint name: lower-case letters, digits, '.' and '-'.",
                source="CheckpointStore.use",
                key="name",
            )
        if parent is not None and parent.folder.parent != self._folder:
            raise BadInputError(
                f"The parent lies in '{parent.folder}', outside of the store '{self._folder}'.",
                source="CheckpointStore.use",
                key="parent",
            )
        key = key_of(name, parts, parent)
        folder = self._folder / f"{name}-{key[:KEY_DIGITS]}"
        what = f"checkpoint '{name}'"
        made = False

        def tell(stage: Stage, message: str) -> None:
            listener(CheckpointEvent(checkpoint=name, stage=stage, message=message))

        def opened() -> tuple[Checkpoint, contextlib.ExitStack]:
            with contextlib.ExitStack() as holding:
                checkpoint = self._open(folder, key, holding, deadline)
                return checkpoint, holding.pop_all()

        def fill(place: Workplace) -> None:
            nonlocal made
            made = True
            scratch = place.work / "scratch"
            scratch.mkdir(mode=0o700)
            with contextlib.ExitStack() as holding:
                pin = None
                if parent is not None:
                    self._open(parent.folder, parent.key, holding, deadline)
                    below = KIND.read(parent.folder)
                    pin = ParentPin(
                        folder=parent.folder.name,
                        key=parent.key,
                        disk_sha256=below.files[DISK].sha256,
                    )
                self._space.require(what, _needed_mib(memory_mib))
                tell(Stage.BUILD, "making it")
                with self._space.naming_a_full_disk(what, _needed_mib(memory_mib), look=True):
                    facts = make(
                        CheckpointPlace(
                            ram=place.content / RAM,
                            state=place.content / STATE,
                            disk=place.content / DISK,
                            folder=scratch,
                        )
                    )
                    seal(
                        place.content,
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
            with self._space.naming_a_full_disk(what, _needed_mib(memory_mib)):
                checkpoint, held = self._shelf.ensure(
                    folder,
                    name=name,
                    opened=opened,
                    fill=fill,
                    tell=tell,
                    deadline=deadline,
                    unflushed={RAM},
                    trouble=trouble,
                )
            holding.push(held)
            if made:
                for removal in self._evict(self._limit_mib):
                    tell(Stage.REMOVED, f"'{removal.path}' was removed: {removal.reason}")
            yield checkpoint

    def ls(self) -> list[CheckpointInfo]:
        """Return what is published, by name; reads no checkpoint."""
        return [info for folder in self._shelf.published() if (info := look(folder)) is not None]

    def verify(self) -> list[CheckpointInfo]:
        """Read every file of every checkpoint; those that would be refused say why."""
        return [
            dataclasses.replace(info, trouble=self._trouble_of(info.folder)) for info in self.ls()
        ]

    def gc(self, limit_mib: int | None = None) -> list[Removal]:
        """Remove what killed makers left, and the least recently used beyond a limit.

        The limit is the store's where none is given; 0 removes all that nobody uses.
        """
        swept = [
            Removal(path=work, size_mib=size / MIB, reason="its maker is dead.")
            for work, size in self._shelf.sweep()
        ]
        return swept + self._evict(self._limit_mib if limit_mib is None else limit_mib)

    def _open(
        self, folder: Path, key: str, holding: contextlib.ExitStack, deadline: Deadline
    ) -> Checkpoint:
        """Return the checkpoint, sound and shared as its parents are, for as long as `holding`."""
        try:
            holding.enter_context(lease.share(folder / USED, deadline=deadline))
        except FileNotFoundError as error:
            if not folder.exists():
                raise GoneError(f"The checkpoint in '{folder}' is gone.") from error
            raise CheckpointDamagedError(
                f"The checkpoint in '{folder}' has no file '{USED}'."
            ) from error
        except WaitTimeoutError as error:
            raise HarnessError(str(error)) from error
        manifest = KIND.check(folder, key)
        self._check_place(folder, manifest)
        parent = None
        if manifest.parent is not None:
            there = self._folder / manifest.parent.folder
            try:
                parent = self._open(there, manifest.parent.key, holding, deadline)
            except GoneError as error:
                raise _orphaned(folder, there) from error
            KIND.check_pin(folder, there, manifest.parent, disk=DISK)
        os.utime(folder / USED)
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

    def _check_place(self, folder: Path, manifest: Manifest) -> None:
        if manifest.place != str(folder.resolve()):
            raise CheckpointDamagedError(
                f"The checkpoint in '{folder}' was made in '{manifest.place}', and its disk names "
                "files there."
            )

    @contextlib.contextmanager
    def _when_unused(self, folder: Path, deadline: Deadline) -> Iterator[None]:
        """Wait until nobody uses a damaged checkpoint: others may just be finding it damaged.

        Those who began from it before it was damaged may go on for as long as they like, but
        nothing else may come in its place: a child's disk would then lie on foreign blocks.
        """
        with contextlib.ExitStack() as holding:

            def try_alone() -> Observation[bool]:
                with contextlib.ExitStack() as attempt:
                    if attempt.enter_context(lease.sole(folder / USED)):
                        holding.push(attempt.pop_all())
                        return Observation(True, "unused")
                return Observation(None, "in use")

            try:
                wait_for("its users", try_alone, deadline.sooner(_READERS_S))
            except WaitTimeoutError as error:
                raise HarnessError(
                    f"The checkpoint in '{folder}' is damaged but still in use, so that it can't "
                    f"be made again; end who uses it (`fuser '{folder / USED}'` names them)."
                ) from error
            yield

    def _gate(self) -> contextlib.AbstractContextManager[None]:
        """Serialise publication and eviction: no child appears while its parent is judged."""
        return lease.hold(
            self._shelf.private("locks") / "gate",
            timeout_s=_GATE_S,
            what="the gate of the checkpoint store",
        )

    def _evict(self, limit_mib: int) -> list[Removal]:
        doomed: list[Path] = []
        removals: list[Removal] = []
        if not self._folder.is_dir():
            return removals
        with self._gate():
            staying = self.ls()
            size_mib = sum(info.size_mib for info in staying)
            candidates = sorted(staying, key=lambda info: info.last_used)
            while size_mib > limit_mib:
                needed = {info.parent for info in staying}
                info = next((each for each in candidates if each.folder.name not in needed), None)
                if info is None:
                    break
                candidates.remove(info)
                with lease.sole(info.folder / USED) as is_alone:
                    if not is_alone:
                        continue
                    doomed.append(self._shelf.take_away(info.folder))
                staying.remove(info)
                size_mib -= info.size_mib
                removals.append(
                    Removal(
                        path=info.folder,
                        size_mib=info.size_mib,
                        reason=f"nobody uses it, and the limit is {limit_mib} MiB.",
                    )
                )
        for folder in doomed:
            shutil.rmtree(folder, ignore_errors=True)
        return removals

    def _trouble_of(self, folder: Path) -> str | None:
        try:
            with lease.share(folder / USED, deadline=Deadline.after(_READERS_S)):
                manifest = KIND.read(folder)
                KIND.check_sizes(folder, manifest)
                KIND.check_digests(folder, manifest)
                self._check_place(folder, manifest)
                if manifest.parent is not None:
                    there = self._folder / manifest.parent.folder
                    if not there.exists():
                        raise _orphaned(folder, there)
                    KIND.check_pin(folder, there, manifest.parent, disk=DISK)
        except (DamagedError, WaitTimeoutError) as error:
            return str(error)
        except FileNotFoundError:
            if folder.exists():
                return f"The checkpoint in '{folder}' has no file '{USED}'."
        return None


def _orphaned(folder: Path, parent: Path) -> CheckpointDamagedError:
    return CheckpointDamagedError(
        f"The checkpoint in '{folder}' lies on '{parent}', which is missing."
    )


_REMEDY = (
    "free some by `harness checkpoints gc --all`, or set XDG_CACHE_HOME to a folder on a larger "
    "disk"
)


def _needed_mib(memory_mib: int) -> int:
    return 2 * memory_mib + RESERVE_MIB
