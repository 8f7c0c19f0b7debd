"""Packs a published folder into compressed blobs, and unpacks and verifies such blobs."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from harness.artifact_cache import MANIFEST
from harness.artifact_cache.manifest import fact_of
from harness.limits import STORE_DATA_TIMES, STORE_OTHER_FILES, STORE_OTHER_MIB
from harness.shared_store import StoreError
from harness.shared_store.answers import (
    FILE_TYPE,
    OWN_FILES,
    REST_TYPE,
    TITLE,
    read_files,
    require_own,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from harness.artifact_cache import FileFact

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
#: The fastest level of gzip is enough: most bytes in a file of a guest's memory are zeros, and
#: kernels are already compressed.
_LEVEL = 1
_GZIP = 31

#: The size of a block that becomes a hole if it has only zeros; a page of memory has 4 KiB.
_HOLE = 16 << 10
#: The number of unpacked bytes that every artifact may have, even if its blobs are small.
_FREE_BYTES = 256 << 20
#: The most bytes that a zip archive's list of files may have, since the whole list is in memory.
_ZIP_LIST_BYTES = 4 << 20
_ZIP_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A blob to push: its file, its digest, and the other fields of its descriptor."""

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


def pack(folder: Path, work: Path) -> Iterator[Packed]:
    """Yield the blobs of a published folder. Each blob's file is removed before the next file is made.

    Raises StoreError, which names the file, if the content of a file differs from the manifest.
    """
    files = read_files((folder / MANIFEST).read_bytes(), folder.name)
    for number, (title, fact) in enumerate(sorted(files.items())):
        path = work / f"{number}.gz"
        found = _compress(folder / title, path)
        if found != fact.sha256:
            raise StoreError(
                f"The file '{folder / title}' is damaged and is not pushed: its digest is "
                f"{found[:12]}…, but {fact.sha256[:12]}… was published."
            )
        yield Packed(path=path, digest=_digest(path), media_type=FILE_TYPE, title=title)
        path.unlink()
    rest = {
        title: path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.is_symlink()
        and (title := path.relative_to(folder).as_posix()) not in files
        and title not in OWN_FILES
    }
    if rest:
        # Files that a pull would refuse are not pushed.
        require_own(rest, folder.name, taken=files)
        STORE_OTHER_FILES.check(len(rest), f"'{folder}'")
        STORE_OTHER_MIB.check_bytes(
            sum(each.stat().st_size for each in rest.values()), f"'{folder}'"
        )
        path = work / "rest.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for title, each in rest.items():
                # All entries have the same date, so that equal files give equal blobs.
                entry = zipfile.ZipInfo(title)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, each.read_bytes())
        yield Packed(path=path, digest=_digest(path), media_type=REST_TYPE, title="rest")
        path.unlink()


class DataBudget:
    """A limit on the unpacked bytes of an artifact. The limit grows with the artifact's packed size.

    The limit does not include bytes in holes. `take` raises StoreError when the limit is exceeded.
    """

    def __init__(self, name: str, packed_bytes: int) -> None:
        self._name = name
        self._left = max(_FREE_BYTES, STORE_DATA_TIMES.value * packed_bytes)

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise StoreError(str(STORE_DATA_TIMES.error(f"The store's '{self._name}'")))


def unpack_file(part: Path, to: Path, fact: FileFact, name: str, budget: DataBudget) -> None:
    """Decompress the blob `part` to the file `to`. Write blocks of zeros as holes.

    Raises StoreError if the content differs from `fact`, the file's entry in the manifest of
    `name`.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    stream = zlib.decompressobj(_GZIP)
    with part.open("rb") as source, to.open("wb") as sink:
        while not stream.eof and size <= fact.size:
            packed = stream.unconsumed_tail or source.read(_CHUNK)
            try:
                chunk = stream.decompress(packed, _CHUNK)
            except zlib.error as error:
                raise StoreError(
                    f"The file '{to.name}' of '{name}' can't be decompressed ({error})."
                ) from error
            if not packed and not chunk:
                break
            digest.update(chunk)
            size += len(chunk)
            for block in (chunk[at : at + _HOLE] for at in range(0, len(chunk), _HOLE)):
                if block == _ZEROS[: len(block)]:
                    sink.seek(len(block), os.SEEK_CUR)
                else:
                    budget.take(len(block))
                    sink.write(block)
        sink.truncate(size)
        has_more = bool(stream.unused_data or source.read(1))
    if (size, digest.hexdigest()) != (fact.size, fact.sha256):
        raise StoreError(
            f"The file '{to.name}' of '{name}' differs from its manifest: it has "
            f"{'more than ' if size > fact.size else ''}{min(size, fact.size)} bytes with the "
            f"digest {digest.hexdigest()[:12]}…, but {fact.size} bytes with the digest "
            f"{fact.sha256[:12]}… were published."
        )
    if has_more or not stream.eof:
        raise StoreError(
            f"The blob of the file '{to.name}' of '{name}' is malformed: the blob "
            f"{'goes on after' if has_more else 'ends before'} the end of the file."
        )
    to.chmod(0o600)


def unpack_rest(part: Path, to: Path, name: str, files: Collection[str]) -> None:
    """Unpack the blob `part` with the files that have no own blob, such as a bake's evidence.

    `files` are the paths of the files that have their own blobs. Raises StoreError if an entry of the blob is not a plain file, or if a limit is exceeded.
    """
    try:
        with _ZipFile(part) as source, zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
            _check_entries(entries, name, files)
            for entry in entries:
                path = to / entry.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                # zipfile reads no more than the size in the entry, and checks the entry's checksum.
                with archive.open(entry) as opened, path.open("xb") as sink:
                    shutil.copyfileobj(opened, sink, _CHUNK)
                path.chmod(0o600)
    except (
        *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
        # zipfile raises these errors for a negative or too large offset, and for a name in a wrong
        # encoding.
        *(ValueError, OverflowError),
    ) as error:
        raise StoreError(f"The other files of '{name}' can't be unpacked ({error}).") from error


def _check_entries(entries: list[zipfile.ZipInfo], name: str, files: Collection[str]) -> None:
    if len(entries) > STORE_OTHER_FILES.value:
        raise StoreError(str(STORE_OTHER_FILES.error(f"The store's '{name}'")))
    if sum(entry.file_size for entry in entries) > STORE_OTHER_MIB.bytes:
        raise StoreError(str(STORE_OTHER_MIB.error(f"The store's '{name}'")))
    require_own((entry.filename for entry in entries), name, taken=files)
    for entry in entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in {0, stat.S_IFREG} or entry.compress_type not in _ZIP_METHODS:
            raise StoreError(
                f"'{name}' lists '{entry.filename}', which is not a plain file, or which was "
                "compressed by a method that is not allowed here."
            )


class _ZipFile(io.FileIO):
    """The file of a zip archive; raises BadZipFile if the archive's list of files is too long."""

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        count = -1 if size is None else size
        if count < 0:
            count = max(0, os.fstat(self.fileno()).st_size - self.tell())
        if count > _ZIP_LIST_BYTES:
            raise zipfile.BadZipFile("its list of files is too long")
        return super().read(count) or b""


def _compress(source: Path, to: Path) -> str:
    """Compress a file by gzip, without a timestamp. Return the digest of its content."""
    digest = hashlib.sha256()
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    with source.open("rb") as reader, to.open("wb") as sink:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            sink.write(stream.compress(chunk))
        sink.write(stream.flush())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    return f"sha256:{fact_of(path).sha256}"
