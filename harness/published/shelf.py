"""The shelf on which published folders stand: claims, workplaces, publication, removal."""

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

from harness.errors import HarnessError, RequirementError
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for
from harness.published import DamagedError, GoneError, Stage, Workplace, allocated_bytes, now

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from contextlib import AbstractContextManager

    from harness.provisioning.wait import Deadline
    from harness.published import Teller

_DOOMED = ".doomed"

T = TypeVar("T")


def _no_guard(_folder: Path, _deadline: Deadline, /) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


Guard = Callable[[Path, "Deadline"], "AbstractContextManager[None]"]


class Shelf:
    """A folder of published folders: claims, workplaces, publication and removal.

    `clean` empties a workplace. `removing` and `publishing` are held while a damaged folder is
    renamed away, and while a new one is renamed into its place and opened.
    """

    def __init__(
        self,
        folder: Path,
        *,
        noun: str,
        clean: Callable[[Path], None] = shutil.rmtree,
        removing: Guard = _no_guard,
        publishing: Guard = _no_guard,
    ) -> None:
        self.folder = folder
        self._noun = noun
        self._clean = clean
        self._removing = removing
        self._publishing = publishing

    def ensure(
        self,
        folder: Path,
        *,
        name: str,
        opened: Callable[[], T],
        fill: Callable[[Workplace], None],
        tell: Teller,
        deadline: Deadline,
        unflushed: Collection[str] = (),
        trouble: Callable[[], str | None] = lambda: None,
    ) -> T:
        """Return what `opened` makes of `folder`, which `fill` makes where it is not sound.

        `opened` raises DamagedError. `fill` leaves the content, its manifest included. The files
        named in `unflushed` are not brought to the disk: for large ones of which a loss may show
        at the verification that follows a crash. `trouble` says why nobody wants the folder any
        more, which ends the wait for another who makes it, and is asked before it is made here.
        """
        if folder.exists():
            try:
                return opened()
            except DamagedError:
                # Perhaps another process is replacing it right now; the lock tells.
                pass
        with self._claim(folder.name, name, tell=tell, deadline=deadline, trouble=trouble):
            if folder.exists():
                try:
                    return opened()
                except GoneError:
                    pass
                except DamagedError as error:
                    tell(Stage.REFUSED, f"{error} It is made again.")
                    with self._removing(folder, deadline):
                        doomed = self.take_away(folder)
                    shutil.rmtree(doomed, ignore_errors=True)
            place = self._workplace(folder.name)
            try:
                fill(place)
                tell(Stage.PUBLISH, f"publishing '{folder}'")
                for path in place.content.rglob("*"):
                    if path.is_file() and path.name not in unflushed:
                        _flush(path)
                with self._publishing(folder, deadline):
                    place.content.rename(folder)
                    _flush(folder.parent)
                    return opened()
            finally:
                self._clean(place.work)

    def private(self, name: str) -> Path:
        """Return a hidden folder beside the published ones."""
        folder = self.folder / f".{name}"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise RequirementError(
                f"The {self._noun} cache '{self.folder}' cannot be written ({error.strerror}); "
                "choose a folder of your own with enough space."
            ) from error
        return folder

    def published(self) -> list[Path]:
        """Return the folders that are published, by name."""
        if not self.folder.is_dir():
            return []
        return sorted(
            path
            for path in self.folder.iterdir()
            if path.is_dir() and not path.name.startswith(".")
        )

    def take_away(self, folder: Path) -> Path:
        """Rename a folder out of sight in one step, so that nobody opens half of it.

        Returns where it is now, for the caller to remove.
        """
        doomed = self.private("work") / f"{folder.name}.{secrets.token_hex(4)}{_DOOMED}"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(doomed)
        return doomed

    def sweep(self) -> list[tuple[Path, int]]:
        """Remove the workplaces of makers that died, and what they were about to remove.

        Returns what was removed, with the bytes that it took on the disk.
        """
        swept: list[tuple[Path, int]] = []
        if not self.folder.is_dir():
            return swept
        for work in sorted(self.private("work").iterdir()):
            if work.name.endswith(_DOOMED):
                swept.append((work, allocated_bytes(work)))
                shutil.rmtree(work, ignore_errors=True)
                continue
            lock = filelock.FileLock(str(self.private("locks") / f"{work.name}.lock"))
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout:
                continue
            try:
                if work.exists():
                    swept.append((work, allocated_bytes(work)))
                    self._clean(work)
            finally:
                lock.release()
        return swept

    def _workplace(self, name: str) -> Workplace:
        work = self.private("work") / name
        if work.exists():
            # Its maker was killed: the lock that guards this folder is ours now.
            self._clean(work)
        work.mkdir(mode=0o700)
        content = work / "content"
        content.mkdir(mode=0o700)
        return Workplace(work=work, content=content)

    @contextlib.contextmanager
    def _claim(
        self,
        name: str,
        what: str,
        *,
        tell: Teller,
        deadline: Deadline,
        trouble: Callable[[], str | None],
    ) -> Iterator[None]:
        """Hold the lock of one key; while another holds it, say who."""
        locks = self.private("locks")
        lock = filelock.FileLock(str(locks / f"{name}.lock"))
        holder = locks / f"{name}.holder"
        told: set[str] = set()

        def look() -> Observation[bool]:
            if why := trouble():
                raise HarnessError(why)
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout:
                seen = _holder_of(holder)
                if seen not in told:
                    told.add(seen)
                    tell(Stage.WAIT, f"waiting for {seen}, which is making this {self._noun}")
                return Observation(None, f"the lock '{lock.lock_file}' is held by {seen}")
            return Observation(True, "held")

        try:
            wait_for(f"the {self._noun} '{what}'", look, deadline, interval_s=0.5)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} Wait for that process, or end it: its lock goes with it."
            ) from error
        try:
            holder.write_text(json.dumps({"pid": os.getpid(), "since": now()}))
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()


def _holder_of(path: Path) -> str:
    try:
        told = json.loads(path.read_text())
        return f"process {told['pid']} (since {told['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        # Between taking the lock and writing this file.
        return "another process"


def _flush(path: Path) -> None:
    """Bring a file or folder to the disk: after a crash a rename must not outlive its data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
