"""Kinds of published folders: manifests, and refusal of what is not as its manifest says."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import pydantic

from harness.published import KEY_DIGITS, MANIFEST, STAMP, DamagedError, FileFact

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from harness.published import ParentPin

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)


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


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    # Several processes may verify one folder at once, each with a file of its own.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    beside.touch(mode=0o600)
    beside.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    beside.rename(path)
