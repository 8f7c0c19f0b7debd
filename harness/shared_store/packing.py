"""A published folder as blobs: each file compressed, verified by its digest on both ways."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from harness.artifact_cache import MANIFEST, STAMP, USED
from harness.shared_store import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
#: The quickest level: most bytes of a memory file are zeros, and kernels are compressed already.
_LEVEL = 1
_GZIP = 31

FILE_TYPE = "application/vnd.gpu-node-harness.file.v1+gzip"
REST_TYPE = "application/vnd.gpu-node-harness.rest.v1+zip"
TITLE = "org.opencontainers.image.title"
#: What lies in a folder and belongs to this host alone.
_OWN = frozenset({MANIFEST, STAMP, USED})


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A blob to push: its file, digest, and the descriptor's other fields."""

    path: Path
    digest: str
    media_type: str
    title: str

    def descriptor(self) -> dict[str, Any]:
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.path.stat().st_size,
            "annotations": {TITLE: self.title},
        }


def read_files(manifest: bytes, name: str) -> Mapping[str, Mapping[str, Any]]:
    """Return size and digest of each file that a folder's manifest names.

    Raises StoreError where it is malformed, or names a file outside of the folder.
    """
    try:
        files = json.loads(manifest)["files"]
        facts = {
            str(title): {"size": int(fact["size"]), "sha256": str(fact["sha256"])}
            for title, fact in files.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"The manifest of '{name}' is malformed: {error!r}.") from error
    for title in facts:
        _require_inside(title, name)
    return facts


def pack(folder: Path, work: Path) -> Iterator[Packed]:
    """Yield the blobs of a published folder, each in a file of `work` until the next one.

    Raises StoreError that names a file whose content is not what the manifest says.
    """
    files = read_files((folder / MANIFEST).read_bytes(), folder.name)
    for number, (title, fact) in enumerate(sorted(files.items())):
        path = work / f"{number}.gz"
        found = _compress(folder / title, path)
        if found != fact["sha256"]:
            raise StoreError(
                f"The file '{folder / title}' is damaged and is not pushed: its digest is "
                f"{found[:12]}…, but {fact['sha256'][:12]}… was published."
            )
        yield Packed(path=path, digest=_digest(path), media_type=FILE_TYPE, title=title)
        path.unlink()
    rest = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and (title := path.relative_to(folder).as_posix()) not in files
        and title not in _OWN
    )
    if rest:
        path = work / "rest.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for each in rest:
                # With one date for all, the same files give the same blob.
                entry = zipfile.ZipInfo(each.relative_to(folder).as_posix())
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, each.read_bytes())
        yield Packed(path=path, digest=_digest(path), media_type=REST_TYPE, title="rest")
        path.unlink()


def unpack_file(part: Path, to: Path, fact: Mapping[str, Any], name: str) -> None:
    """Write the file that the blob `part` holds; blocks of zeros become holes.

    Raises StoreError where the content is not what the manifest of `name` says.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    stream = zlib.decompressobj(_GZIP)
    with part.open("rb") as source, to.open("wb") as sink:
        while packed := (stream.unconsumed_tail or source.read(_CHUNK)):
            try:
                chunk = stream.decompress(packed, _CHUNK)
            except zlib.error as error:
                raise StoreError(
                    f"The file '{to.name}' of '{name}' can't be decompressed ({error})."
                ) from error
            digest.update(chunk)
            size += len(chunk)
            if chunk == _ZEROS[: len(chunk)]:
                sink.seek(len(chunk), os.SEEK_CUR)
            else:
                sink.write(chunk)
            if size > fact["size"]:
                break
        sink.truncate(size)
    if (size, digest.hexdigest()) != (fact["size"], fact["sha256"]):
        raise StoreError(
            f"The file '{to.name}' of '{name}' is not what its manifest says: {size} bytes with the "
            f"digest {digest.hexdigest()[:12]}…, but {fact['size']} with {fact['sha256'][:12]}… were "
            "published."
        )
    to.chmod(0o600)


def unpack_rest(part: Path, to: Path, name: str) -> None:
    """Write the other files of a folder, such as the evidence of a bake."""
    try:
        with zipfile.ZipFile(part) as archive:
            for title in archive.namelist():
                _require_inside(title, name)
            archive.extractall(to)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise StoreError(f"The other files of '{name}' can't be unpacked ({error}).") from error


def _require_inside(title: str, name: str) -> None:
    path = PurePosixPath(title)
    if path.is_absolute() or ".." in path.parts or title in _OWN or not title:
        raise StoreError(f"'{name}' names the file '{title}', which is not one of its own.")


def _compress(source: Path, to: Path) -> str:
    """Write a file as gzip, and return the digest of its content; the bytes depend on that alone."""
    digest = hashlib.sha256()
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    with source.open("rb") as reader, to.open("wb") as sink:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            sink.write(stream.compress(chunk))
        sink.write(stream.flush())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"
