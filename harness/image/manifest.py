"""What was published with an image, and whether the files still are that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pydantic

from harness.image import DriverImage, ImageDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable

MANIFEST = "manifest.json"
DISK = "disk.qcow2"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

STAMP = "verified.json"
"""Says which files' digests were right, and what the files looked like then."""

QCOW2_MAGIC = b"QFI\xfb"


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """What a published file has to be."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ParentPin:
    """The very disk that a derived image's overlay lies on.

    The digest counts: a parent that was built again under the same key has other blocks, and an
    overlay on those is rubbish.
    """

    folder: str
    key: str
    disk_sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an image is; `kernels` go from the oldest to the newest."""

    schema: Literal[1] = 1
    name: str
    key: str
    builder: str
    built: str
    kernels: tuple[str, ...]
    packages: Mapping[str, str]
    driver: DriverImage | None
    parent: ParentPin | None = None
    files: Mapping[str, FileFact]


def fact_of(path: Path) -> FileFact:
    """Read a file's size and digest."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as source:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return FileFact(size=size, sha256=digest.hexdigest())


def facts_of(folder: Path, names: Iterable[str]) -> dict[str, FileFact]:
    return {name: fact_of(folder / name) for name in sorted(names)}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest beside its place and rename it there."""
    _write_json(folder / MANIFEST, asdict(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Read an image's manifest; raises ImageDamagedError where there is no sound one."""
    path = folder / MANIFEST
    try:
        return pydantic.TypeAdapter(Manifest).validate_json(path.read_bytes())
    except OSError as error:
        raise ImageDamagedError(
            f"The image in '{folder}' has no readable manifest ({error.strerror})."
        ) from error
    except pydantic.ValidationError as error:
        slip = error.errors(include_url=False)[0]
        raise ImageDamagedError(
            f"The manifest '{path}' is not sound: {slip['msg']} at "
            f"'{'.'.join(str(part) for part in slip['loc'])}'."
        ) from error


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Refuse an image whose files are absent, cut short or of another kind; takes no time."""
    for name, fact in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise ImageDamagedError(f"The image's file '{path}' is missing.")
        size = path.stat().st_size
        if size != fact.size:
            raise ImageDamagedError(
                f"The image's file '{path}' has {size} bytes, but {fact.size} were published."
            )
    disk = folder / DISK
    with disk.open("rb") as source:
        if source.read(len(QCOW2_MAGIC)) != QCOW2_MAGIC:
            raise ImageDamagedError(f"The image's disk '{disk}' does not begin as qcow2 does.")


def check_digests(folder: Path, manifest: Manifest) -> None:
    """Refuse an image whose files differ in a single byte; reads them whole."""
    for name, fact in manifest.files.items():
        seen = fact_of(folder / name)
        if seen != fact:
            raise ImageDamagedError(
                f"The image's file '{folder / name}' has the digest {seen.sha256[:16]}…, but "
                f"{fact.sha256[:16]}… was published."
            )
    _write_json(folder / STAMP, _appearance(folder, manifest))


def is_stamped(folder: Path, manifest: Manifest) -> bool:
    """Return whether the digests were right since the host booted, and no file changed after.

    A change of content changes ctime, which nobody can set back; after a crash of the host the
    stamp is void, since what was written last may be lost.
    """
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp == _appearance(folder, manifest))


def _appearance(folder: Path, manifest: Manifest) -> dict[str, object]:
    def look(path: Path) -> list[int]:
        stat = path.stat()
        return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]

    return {
        "boot": BOOT_ID.read_text().strip(),
        "files": {name: look(folder / name) for name in sorted(manifest.files)},
    }


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    beside.rename(path)
