"""Makes, publishes and removes the folders of a cache, under locks that all processes share."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import filelock

from harness.artifact_cache import (
    MIB,
    DamagedError,
    GoneError,
    StagingFolder,
    allocated_bytes,
    now,
)
from harness.artifact_cache.removal import Removal
from harness.errors import HarnessError, RequirementError
from harness.progress import Stage
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for
from harness.shared_folder import create_folders

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from contextlib import AbstractContextManager

    from harness.artifact_cache import ArtifactSource
    from harness.progress import Progress
    from harness.provisioning.wait import Deadline

_DOOMED = ".doomed"

T = TypeVar("T")

Guard = Callable[[Path, "Deadline"], "AbstractContextManager[None]"]


def _no_guard(_folder: Path, _deadline: Deadline, /) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


class ArtifactStore:
    """Makes, publishes and removes the folders of the cache in `folder`.

    `clean` removes a staging folder. The context of `removing` is open while a damaged folder is
    moved away. The context of `publishing` is open while a new folder is renamed into place and
    opened. `source` may provide a folder that the cache lacks.
    """

    def __init__(
        self,
        folder: Path,
        *,
        noun: str,
        clean: Callable[[Path], None] = shutil.rmtree,
        removing: Guard | None = None,
        publishing: Guard | None = None,
        source: ArtifactSource | None = None,
    ) -> None:
        self.folder = folder
        self._source = source
        self._noun = noun
        self._clean = clean
        self._removing = removing or _no_guard
        self._publishing = publishing or _no_guard
        self._is_swept = False

    def ensure(
        self,
        folder: Path,
        *,
        opened: Callable[[], T],
        fill: Callable[[StagingFolder], None],
        progress: Progress,
        deadline: Deadline,
        unflushed: Collection[str] = (),
        cancelled: Callable[[], str | None] = lambda: None,
        inputs: Mapping[str, object] | None = None,
    ) -> T:
        """Return the result of `opened`. If `folder` is missing or damaged, `fill` makes the folder first.

        If the store has a source, ask the source for the folder before calling `fill`. `inputs`
        are the parts of the folder's key.

        `opened` raises DamagedError if the folder is damaged. `fill` writes the content and the
        manifest. Files named in `unflushed` are not synced to the disk, which saves time for large
        files. If a crash loses their data, the next verification detects the loss. `cancelled`
        returns a reason if the folder is no longer needed. The call then neither waits for another
        process nor makes the folder, but raises HarnessError with this reason.
        """
        self._sweep_once()
        if folder.exists():
            try:
                return opened()
            except DamagedError:
                # Another process may be replacing the folder; that process holds the lock.
                pass
        with (
            self._lock(folder.name, progress=progress, deadline=deadline, cancelled=cancelled),
            _failure_told(progress),
        ):
            if folder.exists():
                try:
                    return opened()
                except GoneError:
                    pass
                except DamagedError as error:
                    progress.report(
                        Stage.REFUSED, f"{error} The damaged {self._noun} is made again."
                    )
                    with self._removing(folder, deadline):
                        doomed = self.move_to_trash(folder)
                    shutil.rmtree(doomed, ignore_errors=True)

            def published(make: Callable[[StagingFolder], bool]) -> tuple[T] | None:
                staging = self._new_staging_folder(folder.name)
                try:
                    if not make(staging):
                        return None
                    progress.report(Stage.PUBLISH, f"publishing '{folder}'")
                    for path in staging.content.rglob("*"):
                        if path.is_file() and path.name not in unflushed:
                            _flush(path)
                    with self._publishing(folder, deadline):
                        staging.content.rename(folder)
                        _flush(folder.parent)
                        result = (opened(),)
                    progress.report(Stage.READY, f"it takes {allocated_bytes(folder) // MIB} MiB")
                    return result
                finally:
                    # An error of this removal is ignored: the original error matters more, and the
                    # next run removes the staging folder.
                    with contextlib.suppress(OSError):
                        self._clean(staging.work)

            def made(staging: StagingFolder) -> bool:
                fill(staging)
                return True

            source = self._source
            if source is not None:

                def fetched(staging: StagingFolder) -> bool:
                    return source.fetch(
                        folder.name,
                        staging.content,
                        inputs=inputs or {},
                        progress=progress,
                        deadline=deadline,
                    )

                try:
                    result = published(fetched)
                except DamagedError as error:
                    # For example, the fetched folder has an overlay on a disk that this host lacks.
                    progress.report(
                        Stage.REFUSED, f"{error} The {self._noun} is made on this host."
                    )
                    shutil.rmtree(self.move_to_trash(folder), ignore_errors=True)
                else:
                    if result is not None:
                        return result[0]
            result = published(made)
            assert result is not None  # noqa: S101 - `made` returned True
            if source is not None:
                source.offer(folder, progress=progress)
            return result[0]

    def hidden_folder(self, name: str) -> Path:
        """Return a hidden folder beside the published folders. Create the folder if it is missing."""
        folder = self.folder / f".{name}"
        try:
            create_folders(folder, 0o700)
        except OSError as error:
            raise RequirementError(
                f"The {self._noun} cache '{self.folder}' cannot be written ({error.strerror}); "
                "set XDG_CACHE_HOME to a writable folder with enough space."
            ) from error
        return folder

    def published(self) -> list[Path]:
        """Return the paths of the published folders, sorted by name."""
        if not self.folder.is_dir():
            return []
        return sorted(
            path
            for path in self.folder.iterdir()
            if path.is_dir() and not path.name.startswith(".")
        )

    def move_to_trash(self, folder: Path) -> Path:
        """Rename a folder to a hidden path. Return that path, which the caller has to remove.

        A rename is one step, so no process can open a folder that is only partly removed.
        """
        doomed = self.hidden_folder("work") / f"{folder.name}.{secrets.token_hex(4)}{_DOOMED}"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(doomed)
        return doomed

    def sweep(self) -> list[Removal]:
        """Remove the staging folders, doomed folders and holder files that dead processes left."""
        swept: list[Removal] = []
        if not self.folder.is_dir():
            return swept

        def remove(work: Path, clean: Callable[[Path], None]) -> None:
            size_mib = allocated_bytes(work) / MIB
            clean(work)
            reason = "the process that made it is dead."
            swept.append(Removal(path=work, size_mib=size_mib, reason=reason))

        for work in sorted(self.hidden_folder("work").iterdir()):
            if work.name.endswith(_DOOMED):
                remove(work, lambda folder: shutil.rmtree(folder, ignore_errors=True))
                continue
            with self._lock_of_the_dead(work.name) as is_dead:
                if is_dead and work.exists():
                    remove(work, self._clean)
        for holder in self.hidden_folder("locks").glob("*.holder"):
            with self._lock_of_the_dead(holder.stem) as is_dead:
                if is_dead:
                    holder.unlink(missing_ok=True)
        return swept

    @contextlib.contextmanager
    def _lock_of_the_dead(self, name: str) -> Iterator[bool]:
        """Lock the folder `name`. Yield True, or False while another process makes the folder."""
        lock = filelock.FileLock(str(self.hidden_folder("locks") / f"{name}.lock"))
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def _sweep_once(self) -> None:
        """Remove all leftovers of killed processes at the first call. Do nothing at later calls."""
        if self._is_swept:
            return
        self._is_swept = True
        if (self.folder / ".work").is_dir():
            # Errors are ignored, since this user may use a cache that only other users may write.
            with contextlib.suppress(OSError, HarnessError):
                self.sweep()

    def _new_staging_folder(self, name: str) -> StagingFolder:
        work = self.hidden_folder("work") / name
        if work.exists():
            # This process holds the lock, so the process that left this folder was killed.
            self._clean(work)
        work.mkdir(mode=0o700)
        content = work / "content"
        content.mkdir(mode=0o700)
        return StagingFolder(work=work, content=content)

    @contextlib.contextmanager
    def _lock(
        self,
        name: str,
        *,
        progress: Progress,
        deadline: Deadline,
        cancelled: Callable[[], str | None],
    ) -> Iterator[None]:
        """Hold the lock of one key. Report which process holds the lock while this process waits."""
        locks = self.hidden_folder("locks")
        lock = filelock.FileLock(str(locks / f"{name}.lock"))
        holder_file = locks / f"{name}.holder"
        reported: set[str] = set()

        def poll() -> Observation[bool]:
            if reason := cancelled():
                raise HarnessError(reason)
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout:
                holder = _read_holder(holder_file)
                if holder not in reported:
                    reported.add(holder)
                    progress.report(
                        Stage.WAIT, f"waiting for {holder}, which is making this {self._noun}"
                    )
                return Observation(None, f"the lock '{lock.lock_file}' is held by {holder}")
            return Observation(True, "held")

        try:
            wait_for(f"the {self._noun} '{progress.subject}'", poll, deadline, interval_s=0.5)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} Wait for that process, or end it: the kernel then releases its lock."
            ) from error
        try:
            holder_file.write_text(json.dumps({"pid": os.getpid(), "since": now()}))
            yield
        finally:
            holder_file.unlink(missing_ok=True)
            lock.release()


@contextlib.contextmanager
def _failure_told(progress: Progress) -> Iterator[None]:
    """If an exception leaves the block, report that the folder was not made."""
    try:
        yield
    except BaseException:
        progress.report(Stage.ENDED, "it was not made")
        raise


def _read_holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        return f"process {holder['pid']} (since {holder['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        # The process that holds the lock has not written this file yet.
        return "another process"


def _flush(path: Path) -> None:
    """Sync a file or folder to the disk, so that a rename is not stored before the data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
