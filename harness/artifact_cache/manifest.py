"""Manifests of published folders, and the checks of a folder against its manifest."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import pydantic

from harness.artifact_cache import DISK, KEY_DIGITS, MANIFEST, STAMP, DamagedError, FileFact

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.artifact_cache import ParentPin

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)


class Manifest(Protocol):
    """The fields of all manifests. A format's manifest is a frozen dataclass with more fields."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def parent(self) -> ParentPin | None: ...
    @property
    def files(self) -> Mapping[str, FileFact]: ...
    @property
    def created(self) -> str: ...


M = TypeVar("M", bound=Manifest)


def fact_of(path: Path) -> FileFact:
    """Return a file's size and digest. Hash holes as zeros without reading them."""
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
                    # The file was truncated while it was read; the size in the result shows that.
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
        # This error of lseek(2) means that the rest of the file is a hole.
        return size


def facts_of(folder: Path, names: Iterable[str]) -> dict[str, FileFact]:
    return {name: fact_of(folder / name) for name in sorted(names)}


class ManifestFormat(Generic[M]):
    """Writes and reads manifests of one format, and checks folders against their manifests.

    `noun` is the format's name in messages. `damaged` is the error for a folder that fails a check.
    """

    def __init__(self, *, noun: str, manifest: type[M], damaged: type[DamagedError]) -> None:
        self.noun = noun
        self._manifest = manifest
        self._damaged = damaged

    @functools.cached_property
    def _adapter(self) -> pydantic.TypeAdapter[M]:
        return pydantic.TypeAdapter(self._manifest)

    def write(self, folder: Path, manifest: M) -> None:
        """Write the manifest into a staging folder."""
        _write_json(folder / MANIFEST, self._adapter.dump_python(manifest, mode="json"))

    def read(self, folder: Path) -> M:
        """Return a folder's manifest. Raise the `damaged` error if the manifest is missing or malformed."""
        path = folder / MANIFEST
        try:
            manifest = self._adapter.validate_json(path.read_bytes())
        except OSError as error:
            raise self._damaged(
                f"The {self.noun} in '{folder}' has no readable manifest ({error.strerror})."
            ) from error
        except pydantic.ValidationError as error:
            slip = error.errors(include_url=False)[0]
            raise self._damaged(
                f"The manifest '{path}' is malformed: {slip['msg']} at "
                f"'{'.'.join(str(part) for part in slip['loc'])}'."
            ) from error
        for name in self.required_files(manifest):
            if name not in manifest.files:
                raise self._damaged(f"The manifest '{path}' is malformed: 'files' lacks '{name}'.")
        return manifest

    def required_files(self, manifest: M) -> Sequence[str]:
        """Return the files that a folder with this manifest must have, by default only the disk."""
        del manifest
        return (DISK,)

    def check(self, folder: Path, key: str) -> M:
        """Return a folder's manifest. Raise the `damaged` error if the folder fails a check.

        The structure is checked each time. Digests are checked only if they were not checked since
        the host booted, or if the files' inodes changed since the last check.
        """
        manifest = self.read(folder)
        if manifest.key != key:
            raise self._damaged(
                f"The manifest of the {self.noun} in '{folder}' has the key "
                f"'{manifest.key[:KEY_DIGITS]}', but '{key[:KEY_DIGITS]}' was expected."
            )
        self.check_structure(folder, manifest)
        if not self.is_verified_since_boot(folder, manifest):
            self.check_digests(folder, manifest)
        return manifest

    def check_structure(self, folder: Path, manifest: M) -> None:
        """Raise the `damaged` error if a file is missing or has another size. Read no file."""
        for name, fact in manifest.files.items():
            path = folder / name
            if not path.is_file():
                raise self._damaged(f"The {self.noun}'s file '{path}' is missing.")
            size = path.stat().st_size
            if size != fact.size:
                raise self._damaged(
                    f"The {self.noun}'s file '{path}' has {size} bytes, but its manifest "
                    f"states {fact.size}."
                )

    def check_digests(self, folder: Path, manifest: M) -> None:
        """Raise the `damaged` error if a file has another digest. Read every file."""
        fingerprint = stat_fingerprint(folder, manifest.files)
        for name, fact in manifest.files.items():
            found = fact_of(folder / name)
            if found != fact:
                raise self._damaged(
                    f"The {self.noun}'s file '{folder / name}' has the digest "
                    f"{found.sha256[:16]}…, but its manifest states {fact.sha256[:16]}…."
                )
        write_stamp(folder, fingerprint)

    def check_pin(self, folder: Path, parent: Path, pin: ParentPin) -> None:
        """Raise the `damaged` error unless the parent's disk exists and is the pinned disk."""
        if not parent.exists():
            raise self.orphaned(folder, parent)
        if self.read(parent).files[DISK].sha256 != pin.disk_sha256:
            raise self._damaged(
                f"The disk of the {self.noun} in '{folder}' is based on an earlier disk of '{parent}'; "
                f"the {self.noun} in '{parent}' was made again since, and has another disk."
            )

    def orphaned(self, folder: Path, parent: Path) -> DamagedError:
        """Return the error for a folder whose parent is missing."""
        return self._damaged(
            f"The {self.noun} in '{folder}' is based on '{parent}', which is missing."
        )

    def is_verified_since_boot(self, folder: Path, manifest: M) -> bool:
        """Return whether all digests were verified since the host's boot, and no file changed since.

        A change of a file's content changes its ctime, which no program can set back. A stamp from
        before a reboot is not accepted, since a crash of the host may have lost the last writes.
        """
        try:
            stamp = json.loads((folder / STAMP).read_text())
        except (OSError, ValueError):
            return False
        return bool(stamp == stat_fingerprint(folder, manifest.files))


def stat_fingerprint(folder: Path, names: Iterable[str]) -> dict[str, object]:
    """Return what a stamp records: the files' inode data, and the id of the host's current boot."""

    def inode_of(path: Path) -> list[int]:
        stat = path.stat()
        return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]

    return {
        "boot": BOOT_ID.read_text().strip(),
        "files": {name: inode_of(folder / name) for name in sorted(names)},
    }


def write_stamp(folder: Path, fingerprint: Mapping[str, object]) -> None:
    """Record that the files' digests were right. `fingerprint` must be from *before* the files were read.

    The stamp is not first written to a temporary file, because a killed process would leave that
    file behind. If a stamp is written only in part, the digests are verified again.
    """
    _write_json(folder / STAMP, fingerprint)


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.touch(mode=0o600)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
