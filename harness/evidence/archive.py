"""Packs the evidence of a failed test into one file for another host, and unpacks such a file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

from harness.errors import BadInputError, HarnessError
from harness.lease import leased_folder, sweep
from harness.limits import ARCHIVE, ARCHIVE_ENTRIES, PATH_LEVELS
from harness.provisioning.command import PIPE, LocalRunner, end, spawn
from harness.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

#: The suffixes of archives by the program that packs them, the preferred program first. Memory and
#: disk of a saved machine are compressed already, so the fastest level is enough.
_PACKERS = {"zstd": (".tar.zst", "zstd -q -1 -T0"), "gzip": (".tar.gz", "gzip -1")}
SUFFIXES = tuple(suffix for suffix, _ in _PACKERS.values())
#: The names of the folders in the evidence of a machine.
_PARTS = frozenset({"checkpoint", "commands", "files", "host"})
_PACK_S = 600.0
_END_S = 10.0
#: The limit of the unpacked size as a multiple of the archive's size; packing reduces text to about
#: a tenth of its size.
_RATIO = 32
#: The files of a saved machine that only `harness resume` reads.
_MACHINE = re.compile(r"/checkpoint/memory\.[^/]*$|/disk\.qcow2$")
#: The size limit of one header, which contains a file's name and the map of a sparse file.
_HEADER_BYTES = 4 << 20
#: The beginning of a record in an extended header: the record's length, and its keyword.
_RECORD = re.compile(rb"(\d{1,7}) [^=\n]+=")
#: A number that is longer than the longest name of a file; for such a number, tarfile may need hours.
_LONG_NUMBER = re.compile(rb"\d{256}")
_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 4096


def archive_of(folder: Path) -> Path | None:
    """Return the archive beside the folder of a test's evidence, or None."""
    found = (folder.with_name(folder.name + suffix) for suffix in SUFFIXES)
    return next((path for path in found if path.is_file()), None)


def write_archive(folder: Path) -> Path:
    """Pack a test's evidence folder into an archive beside it that only the owner can read.

    Raises HarnessError if the archive can't be written.
    """
    program = next((each for each in _PACKERS if shutil.which(each)), "gzip")
    suffix, packer = _PACKERS[program]
    archive = folder.with_name(folder.name + suffix)
    part = archive.with_name(f".{archive.name}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        result = LocalRunner().run(
            [
                *(
                    "tar",
                    "--create",
                    "--sparse",
                    # A ':' in a name would mark a remote host.
                    "--force-local",
                    f"--file={part}",
                    f"--use-compress-program={packer}",
                ),
                # These warnings are expected: the log and the sockets of a kept machine's process
                # may change while tar runs.
                *("--warning=no-file-changed", "--warning=no-file-ignored"),
                *(f"--directory={folder.parent}", "--", folder.name),
            ],
            timeout_s=_PACK_S,
        )
        # tar exits with code 1 if a file changed while tar read this file.
        if result.exit_code not in {0, 1}:
            raise HarnessError(f"The archive of '{folder}' can't be made.\n{result.render()}")
        for each in SUFFIXES:
            folder.with_name(folder.name + each).unlink(missing_ok=True)
        part.rename(archive)
    except OSError as error:
        raise HarnessError(f"The archive of '{folder}' can't be made: {error}.") from error
    finally:
        part.unlink(missing_ok=True)
    return archive


@contextlib.contextmanager
def opened(bundle: Path, runs: Path, *, has_machine: bool = False) -> Iterator[Path]:
    """Yield the folder of a test's evidence: `bundle`, or a new folder with the unpacked `bundle`.

    An archive is unpacked into a new folder below `runs`; the end of the context removes this
    folder. Before an archive is unpacked, the folders that killed processes left below `runs` are
    removed. The memory and disk of a saved machine are unpacked only if `has_machine` is true.
    Raises BadInputError if `bundle` is neither a folder nor an archive of evidence, and LimitError
    if the archive is too large.
    """
    if bundle.is_dir():
        yield bundle
        return
    if not bundle.is_file() or not bundle.name.endswith(SUFFIXES):
        raise BadInputError(
            "This is neither a folder of evidence nor an archive of evidence "
            f"({', '.join(SUFFIXES)}).",
            source=str(bundle),
        )
    packer = next(
        packer for suffix, packer in _PACKERS.values() if bundle.name.endswith(suffix)
    ).split()[0]
    if shutil.which(packer) is None:
        raise HarnessError(
            f"'{bundle}' is packed by '{packer}', which this host lacks; install it with "
            f"`apt-get install {packer}`."
        )
    sweep(runs)
    with leased_folder(runs, prefix="bundle") as folder:
        try:
            with bundle.open("rb") as packed, _unpacking(packer, packed) as stream:
                unpack(
                    stream,
                    folder,
                    source=str(bundle),
                    limit_bytes=_limit_of(bundle),
                    has_machine=has_machine,
                )
        except OSError as error:
            raise BadInputError(
                f"The archive can't be unpacked into '{runs}': {error.strerror or error}.",
                source=str(bundle),
            ) from error
        try:
            yield folder
        except BadInputError as error:
            # Name the archive instead of the unpacked folder, because the unpacked folder is
            # removed now.
            error.sentence = error.sentence.replace(visible(str(folder)), visible(str(bundle)))
            raise


def _limit_of(bundle: Path) -> int:
    return max(ARCHIVE.bytes, _RATIO * bundle.stat().st_size)


@contextlib.contextmanager
def _unpacking(packer: str, packed: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the output of the program that unpacks `packed`; raises OSError on exit if the program failed."""
    process = spawn([packer, "-dc"], stdin=packed, stdout=PIPE)
    if process.stdout is None:  # pragma: no cover - `spawn` opened a pipe
        raise OSError(errno.EPIPE, "it has no output")
    try:
        yield cast("BinaryIO", process.stdout)
        # tarfile stops before the padding after the last block; the padding is still in the pipe.
        is_whole = len(process.stdout.read(_CHUNK_BYTES)) < _CHUNK_BYTES
        if is_whole and end(process, grace_s=_END_S) != 0:
            raise OSError(
                errno.EINVAL, f"`{packer}` reports that the file is damaged or not an archive"
            )
    finally:
        end(process)
        process.stdout.close()


def unpack(
    stream: BinaryIO, folder: Path, *, source: str, limit_bytes: int, has_machine: bool = True
) -> None:
    """Write the files and folders of a tar archive below `folder`, which is new and private.

    The holes of a sparse file count towards the size limit. Raises LimitError if the archive has
    more bytes, entries or levels of folders than allowed. Raises BadInputError for a damaged
    archive. Raises BadInputError for a link or a device in the archive, because a reader of the
    folder would open the link's target or the device on this host.
    """
    bounded = _ForwardOnly(stream, source, limit_bytes)
    try:
        # In this mode, tarfile reads only the bytes that it needs; in its stream mode, it reads
        # ahead.
        with tarfile.open(
            fileobj=cast("BinaryIO", bounded), mode="r:", tarinfo=_Member
        ) as archive:
            for count in itertools.count(1):
                bounded.begin_header()
                member = archive.next()
                # Otherwise, tarfile would keep every member in memory.
                archive.members = []  # type: ignore[attr-defined]
                if member is None:
                    bounded.expect_end()
                    return
                ARCHIVE_ENTRIES.check(count, source)
                _unpack_member(archive, member, bounded, folder, has_machine=has_machine)
    except (
        *(tarfile.TarError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError),
        *(OSError, MemoryError),
    ) as error:
        raise BadInputError(
            f"The archive can't be unpacked into '{folder}': the archive is damaged, the file is "
            f"not an archive, or the disk is full ({error}).",
            source=source,
        ) from error


def _unpack_member(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    bounded: _ForwardOnly,
    folder: Path,
    *,
    has_machine: bool,
) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise BadInputError(
            f"The archive contains '{member.name}', a path that leads out of its folder; the harness writes "
            "no such archives, so do not trust this archive.",
            source=bounded.source,
        )
    if not member.isreg() and not member.isdir():
        raise BadInputError(
            f"The archive has '{member.name}', which is neither a file nor a folder; the harness writes "
            "no such archives, so do not trust it.",
            source=bounded.source,
        )
    PATH_LEVELS.check(len(path.parts), f"{bounded.source}: '{member.name}'")
    bounded.begin_content(member.size)
    to = folder / path
    if member.isdir():
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif has_machine or not _MACHINE.search(member.name):
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if to.exists():
            raise BadInputError(f"The archive has '{member.name}' twice.", source=bounded.source)
        archive.makefile(member, to)


class _Member(tarfile.TarInfo):
    """An archive member that refuses global headers, and tells the stream of extended headers.

    tarfile would copy the records of all global headers for each file.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type == tarfile.XGLTYPE:
            raise tarfile.ReadError("it has a header that applies to all files")
        if self.type in {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE}:
            cast("_ForwardOnly", archive.fileobj).begin_records()
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member


class _ForwardOnly:
    """A file object for tarfile that reads a stream only forward, and within limits.

    The size of headers is limited because tarfile would read a header of any size into memory.
    """

    def __init__(self, stream: BinaryIO, source: str, limit_bytes: int) -> None:
        self.source = source
        self._stream = stream
        self._limit_bytes = limit_bytes
        self._at = 0
        self._content_bytes = 0
        self._header_left: int | None = _HEADER_BYTES
        self._last_read = b""
        self._has_records = False

    def begin_header(self) -> None:
        """Expect the next bytes to be a header, or the end of a file's content."""
        self._header_left = _HEADER_BYTES

    def begin_records(self) -> None:
        """Expect the content of an extended header."""
        self._has_records = True

    def begin_content(self, size: int) -> None:
        """Expect the content of a file of `size` bytes; raises LimitError if the content is too long."""
        self._header_left = None
        # Each file takes at least one block of the file system.
        self._content_bytes += (max(size, 0) // _BLOCK_BYTES + 1) * _BLOCK_BYTES
        if max(self._content_bytes, self._at) > self._limit_bytes:
            raise ARCHIVE.error(self.source)

    def expect_end(self) -> None:
        """Raise ReadError unless the last header was a block of zeros, which ends an archive.

        tarfile stops without an error at a damaged header, and at the end of a truncated archive.
        """
        if self._last_read != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError(
                f"neither a header nor the end of the archive was found at byte {self._at}"
            )

    def tell(self) -> int:
        return self._at

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or place < self._at:
            raise tarfile.ReadError("its files overlap")
        while self._at < place:
            left = min(place - self._at, _CHUNK_BYTES)
            if len(self._read(left)) < left:
                break
        return self._at

    def read(self, size: int = -1) -> bytes:
        if self._header_left is not None:
            self._header_left -= size
            if size < 0 or self._header_left < 0:
                raise tarfile.ReadError(f"a header has more than {_HEADER_BYTES >> 20} MiB")
        self._last_read = self._read(min(size, _CHUNK_BYTES) if size >= 0 else _CHUNK_BYTES)
        if self._has_records:
            self._has_records = False
            _require_records(self._last_read)
        return self._last_read

    def _read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._at += len(content)
        # The factor 2 is a reserve for headers and padding.
        if self._at > 2 * self._limit_bytes:
            raise ARCHIVE.error(self.source)
        return content


def _require_records(content: bytes) -> None:
    """Raise ReadError unless an extended header consists of consecutive records, followed by zeros.

    Before Python 3.11.10, tarfile accepts overlapping records, and needs much time and memory to
    read such records.
    """
    at = 0
    while content[at : at + 1].strip(b"\0"):
        found = _RECORD.match(content, at)
        end = at + int(found[1]) if found else 0
        if found is None or found.end() >= end or content[end - 1 : end] != b"\n":
            raise tarfile.ReadError("an extended header is damaged")
        at = end
    if _LONG_NUMBER.search(content):
        raise tarfile.ReadError("an extended header has a very long number")


def machine_folders(folder: Path) -> list[Path]:
    """Return the folders of machines in a test's evidence; `folder` itself may be a machine's folder.

    The folder of a machine is not searched for more machines, because a guest chooses the names of
    the gathered files. Raises LimitError if the folders are nested too deeply.
    """
    found = []
    for path, folders, _ in os.walk(folder):
        PATH_LEVELS.check(len(Path(path).parts) - len(folder.parts), f"'{folder}'")
        if any(_is_part(Path(path, name)) for name in folders):
            found.append(Path(path))
            folders.clear()
    return sorted(found)


def _is_part(folder: Path) -> bool:
    """Return whether a folder is a part of a machine's evidence, and not itself a machine's evidence."""
    return folder.name in _PARTS and not (folder / "host").is_dir()


def several_machines(found: Sequence[Path], folder: Path, bundle: Path) -> BadInputError:
    """Return the error for a `bundle` with evidence of several machines, unpacked to `folder`."""
    names = ", ".join(f"'{path.relative_to(folder)}'" for path in found)
    how = (
        "name the folder of one machine"
        if bundle.is_dir()
        else "unpack the archive, and name the folder of one machine"
    )
    return BadInputError(
        f"The evidence is from several machines, {names}; {how}.", source=str(bundle)
    )
