"""Describes the backing file of a saved machine's disk in a bundle, and finds this image on a host.

A baked image is itself an overlay on the image from which it was made, so a disk may need a chain of
backing files.
"""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.artifact_cache import DISK, MANIFEST
from harness.errors import HarnessError
from harness.foreign_json import parse_json
from harness.image.formats.qcow2 import backing_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """The backing file of a machine's disk.

    `digest` is from the image's manifest. `folder` is the image's folder on the host that saved
    the machine. `parents` are the folders of the image's own backing files. The folder of the
    direct backing file is first.
    """

    name: str
    digest: str
    folder: str
    parents: tuple[str, ...] = ()


def describe_base(name: str, digest: str, disk: Path) -> BaseImage:
    """Return a bundle's description of an image whose disk is in a cache of this host."""
    parents = tuple(str(lower.parent) for lower in _lower_disks(disk))
    return BaseImage(name=name, digest=digest, folder=str(disk.parent), parents=parents)


def find_base(base: BaseImage, stores: Iterable[Path]) -> Path:
    """Return the disk of the base image in one of the image stores of this host.

    Raises HarnessError if the base image or one of its backing files is missing, or if a backing file
    was rebuilt after the overlay on it was made. The message says how to get the image.
    """
    places = list(stores)
    for store in places:
        for manifest in store.glob(f"*/{MANIFEST}"):
            if base.digest in _digests(manifest):
                _require_parents(manifest.parent / DISK, base, places)
                return manifest.parent / DISK
    missing = [
        base.folder,
        *(path for path in base.parents if not _place_of(path, places).exists()),
    ]
    raise HarnessError(
        f"The machine's disk needs the image '{base.name}' with the digest {base.digest}, which is "
        "not in the cache of this host. A new build has another digest, so copy the image from "
        f"the host that made the bundle: {_copy_commands(missing, places)}. A cloud image can also "
        f"be fetched: `harness image fetch --image {shlex.quote(base.name)}`."
    )


def _require_parents(upper: Path, base: BaseImage, places: Sequence[Path]) -> None:
    """Raise HarnessError if a backing file of `upper` is missing, or was rebuilt."""
    for lower in _lower_disks(upper):
        if not lower.exists():
            folder = lower.parent
            there = (path for path in base.parents if Path(path).name == folder.name)
            raise HarnessError(
                f"The machine's disk needs the image '{base.name}' in '{upper.parent}'. That image "
                f"needs the folder '{folder}', which is missing in the cache of this host. Copy that "
                "folder from the host that made the bundle: "
                f"{_copy_commands([next(there, str(Path(base.folder).with_name(folder.name)))], places)}."
            )
        pinned = _pinned_digest(upper.with_name(MANIFEST))
        if pinned is not None and pinned not in _digests(lower.with_name(MANIFEST)):
            raise HarnessError(
                f"The image '{base.name}' in '{upper.parent}' was made from an image with the "
                f"digest {pinned}, but '{lower.parent}' has another build of that image, or has no "
                "readable manifest. Resume the machine with a separate cache: set XDG_CACHE_HOME to an "
                "empty folder, and copy both images into it."
            )
        upper = lower


def _lower_disks(disk: Path) -> Iterator[Path]:
    """Yield each backing file in a disk's chain. The last file might not exist.

    Raises HarnessError for a cycle.
    """
    seen = {disk.resolve()}
    while disk.exists() and (name := backing_name(disk)) is not None:
        disk = (disk.parent / name).resolve()
        if disk in seen:
            raise HarnessError(
                f"The chain of backing files of the disk '{disk}' leads back to this disk; remove the disk."
            )
        seen.add(disk)
        yield disk


def _place_of(folder: str, places: Sequence[Path]) -> Path:
    """Return the path in this host's stores that corresponds to `folder`, an image's folder on another host."""
    there = Path(folder)
    for place in places:
        if place.name == there.parent.name:
            return place / there.name
    return places[0] / there.name


def _copy_commands(folders: Sequence[str], places: Sequence[Path]) -> str:
    commands = (
        ["rsync", "-a", f"HOST:{folder}", f"{_place_of(folder, places).parent}/"]
        for folder in folders
    )
    return " and ".join(f"`{shlex.join(command)}`" for command in commands)


def _digests(manifest: Path) -> set[str]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        fields = parse_json(manifest.read_text())
        return {fields["files"][DISK]["sha256"], fields.get("digest")}
    return set()


def _pinned_digest(manifest: Path) -> str | None:
    """Return the digest of an image's base image, or None if the manifest has no digest."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(parse_json(manifest.read_text())["parent"]["disk_sha256"])
    return None
