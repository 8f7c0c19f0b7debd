"""Folders made once by whoever comes first, published whole by a rename, checked before each use.

A store of such folders, be they images or checkpoints, keeps one for each key. A lock for each
key, void when its holder dies, lets one process make it while the others wait and say for whom.
What is in a folder stands in its manifest, with every file's size and digest.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import functools
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import filelock
import pydantic

from harness.errors import HarnessError, RequirementError
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from harness.provisioning.wait import Deadline

MANIFEST = "manifest.json"

STAMP = "verified.json"
"""Says which files' digests were right, and what the files looked like then."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

KEY_DIGITS = 16
"""Digits of a key that file names carry."""

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
_DOOMED = ".doomed"

T = TypeVar("T")


class DamagedError(HarnessError):
    """A folder is not what was published; nobody may use it."""


class GoneError(DamagedError):
    """A folder was taken away, in good order, between looking for it and opening it."""


class Stage(Enum):
    """What a folder is going through; the value is the word shown to people."""

    CHECK = "check"
    WAIT = "wait"
    BUILD = "build"
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


class Manifest(Protocol):
    """What every manifest says; those of a kind are frozen dataclasses that say more."""

    @property
    def key(self) -> str: ...
    @property
    def files(self) -> Mapping[str, FileFact]: ...


M = TypeVar("M", bound=Manifest)


def fact_of(path: Path) -> FileFact:
    """Read a file's size and digest; holes count as the zeros they read as, but are not read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as source:
        size = os.fstat(source.fileno()).st_size
        at = 0
        while at < size:
            data = _seek_data(source.fileno(), at, size)
            for _ in range((data - at) // _CHUNK):
                digest.update(_ZEROS)
            digest.update(_ZEROS[: (data - at) % _CHUNK])
            at = data
            end = at if at == size else os.lseek(source.fileno(), at, os.SEEK_HOLE)
            source.seek(at)
            while at < end:
                chunk = source.read(min(_CHUNK, end - at))
                if not chunk:
                    # Cut short while it was read; the size will tell.
                    return FileFact(size=at, sha256=digest.hexdigest())
                digest.update(chunk)
                at += len(chunk)
    return FileFact(size=size, sha256=digest.hexdigest())


def _seek_data(descriptor: int, at: int, size: int) -> int:
    try:
        return min(size, os.lseek(descriptor, at, os.SEEK_DATA))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        # Nothing but a hole from here to the end, lseek(2).
        return size


def facts_of(folder: Path, names: Iterable[str]) -> dict[str, FileFact]:
    return {name: fact_of(folder / name) for name in sorted(names)}


class Kind(Generic[M]):
    """How folders of one kind are described, and refused where they are not as described."""

    def __init__(self, *, noun: str, shape: type[M], damaged: type[DamagedError]) -> None:
        self.noun = noun
        self._shape = shape
        self._damaged = damaged

    @functools.cached_property
    def _adapter(self) -> pydantic.TypeAdapter[M]:
        return pydantic.TypeAdapter(self._shape)

    def write(self, folder: Path, manifest: M) -> None:
        """Write the manifest beside its place and rename it there."""
        _write_json(folder / MANIFEST, self._adapter.dump_python(manifest, mode="json"))

    def read(self, folder: Path) -> M:
        """Read a folder's manifest; raises the kind's error where there is no sound one."""
        path = folder / MANIFEST
        try:
            return self._adapter.validate_json(path.read_bytes())
        except OSError as error:
            raise self._damaged(
                f"The {self.noun} in '{folder}' has no readable manifest ({error.strerror})."
            ) from error
        except pydantic.ValidationError as error:
            slip = error.errors(include_url=False)[0]
            raise self._damaged(
                f"The manifest '{path}' is not sound: {slip['msg']} at "
                f"'{'.'.join(str(part) for part in slip['loc'])}'."
            ) from error

    def check(self, folder: Path, key: str) -> M:
        """Return the manifest of a sound folder; raises the kind's error.

        Sizes are compared each time; digests when the files have not been read since the host
        booted, or look changed.
        """
        manifest = self.read(folder)
        if manifest.key != key:
            raise self._damaged(
                f"The {self.noun} in '{folder}' says that its key is "
                f"'{manifest.key[:KEY_DIGITS]}'."
            )
        self.check_sizes(folder, manifest)
        if not self.is_stamped(folder, manifest):
            self.check_digests(folder, manifest)
        return manifest

    def check_sizes(self, folder: Path, manifest: M) -> None:
        """Refuse a folder whose files are absent or cut short; takes no time."""
        for name, fact in manifest.files.items():
            path = folder / name
            if not path.is_file():
                raise self._damaged(f"The {self.noun}'s file '{path}' is missing.")
            size = path.stat().st_size
            if size != fact.size:
                raise self._damaged(
                    f"The {self.noun}'s file '{path}' has {size} bytes, but {fact.size} were "
                    "published."
                )

    def check_digests(self, folder: Path, manifest: M) -> None:
        """Refuse a folder whose files differ in a single byte; reads them whole."""
        seen = appearance(folder, manifest.files)
        for name, fact in manifest.files.items():
            found = fact_of(folder / name)
            if found != fact:
                raise self._damaged(
                    f"The {self.noun}'s file '{folder / name}' has the digest "
                    f"{found.sha256[:16]}…, but {fact.sha256[:16]}… was published."
                )
        write_stamp(folder, seen)

    def check_pin(self, folder: Path, parent: Path, pin: ParentPin, *, disk: str) -> None:
        """Refuse a folder whose overlay lies on another disk than its parent now holds."""
        if self.read(parent).files[disk].sha256 != pin.disk_sha256:
            raise self._damaged(
                f"The {self.noun} in '{folder}' lies on a disk that '{parent}' no longer holds: "
                f"that {self.noun} was built again."
            )

    def is_stamped(self, folder: Path, manifest: M) -> bool:
        """Return whether the digests were right since the host booted, and no file changed after.

        A change of content changes ctime, which nobody can set back; after a crash of the host
        the stamp is void, since what was written last may be lost.
        """
        try:
            stamp = json.loads((folder / STAMP).read_text())
        except (OSError, ValueError):
            return False
        return bool(stamp == appearance(folder, manifest.files))


def appearance(folder: Path, names: Iterable[str]) -> dict[str, object]:
    """Return what a stamp says of files: it changes with their content, and with each boot."""

    def look(path: Path) -> list[int]:
        stat = path.stat()
        return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]

    return {
        "boot": BOOT_ID.read_text().strip(),
        "files": {name: look(folder / name) for name in sorted(names)},
    }


def write_stamp(folder: Path, seen: Mapping[str, object]) -> None:
    """Note that files which looked as `seen` *before* they were read had the right digests."""
    _write_json(folder / STAMP, seen)


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where a folder is put together: `content` is what is published, `work` is scratch."""

    work: Path
    content: Path


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
    ) -> T:
        """Return what `opened` makes of `folder`, which `fill` makes where it is not sound.

        `opened` raises DamagedError. `fill` leaves the content, its manifest included. The files
        named in `unflushed` are not brought to the disk: for large ones of which a loss may show
        at the verification that follows a crash.
        """
        if folder.exists():
            try:
                return opened()
            except DamagedError:
                # Perhaps another process is replacing it right now; the lock tells.
                pass
        with self._claim(folder.name, name, tell=tell, deadline=deadline):
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

    def sweep(self) -> list[Path]:
        """Remove the workplaces of makers that died, and what they were about to remove."""
        swept: list[Path] = []
        if not self.folder.is_dir():
            return swept
        for work in sorted(self.private("work").iterdir()):
            if work.name.endswith(_DOOMED):
                shutil.rmtree(work, ignore_errors=True)
                swept.append(work)
                continue
            lock = filelock.FileLock(str(self.private("locks") / f"{work.name}.lock"))
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout:
                continue
            try:
                if work.exists():
                    self._clean(work)
                    swept.append(work)
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
    def _claim(self, name: str, what: str, *, tell: Teller, deadline: Deadline) -> Iterator[None]:
        """Hold the lock of one key; while another holds it, say who."""
        locks = self.private("locks")
        lock = filelock.FileLock(str(locks / f"{name}.lock"))
        holder = locks / f"{name}.holder"
        told: set[str] = set()

        def look() -> Observation[bool]:
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


def now() -> str:
    return dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")


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


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    # Several processes may verify one folder at once, each with a file of its own.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    beside.touch(mode=0o600)
    beside.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    beside.rename(path)
