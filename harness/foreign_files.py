"""Reads files in folders that a guest, another person or another host filled.

A folder that others filled may contain links to files of this host, FIFOs whose content never ends,
and sparse files whose content is larger than memory. `read_given` reads a file that the user names.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.limits import EVIDENCE_FILE

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from harness.limits import Limit

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_plain(
    path: Path, *, limit: Limit = EVIDENCE_FILE, below: Path | None = None, slack: int = 0
) -> BinaryIO:
    """Open a regular file of at most `limit` plus `slack` bytes.

    Neither `path` nor a folder between `below` and `path` may be a link. Raises OSError if `path`
    does not exist, is not a regular file or leads through a link, and LimitError if the file is too
    long.
    """
    file = open(_opened(path, below), "rb")  # noqa: SIM115 - the caller closes it
    if (size := os.fstat(file.fileno()).st_size) > limit.bytes + slack:
        file.close()
        limit.check_bytes(size, f"'{path}'")
    return file


def read_plain(path: Path, *, limit: Limit = EVIDENCE_FILE, below: Path | None = None) -> bytes:
    """Return the content of a regular file that `open_plain` can open."""
    with open_plain(path, limit=limit, below=below) as file:
        return _content(file, path, limit)


def read_given(path: Path, *, limit: Limit) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; `path` may be a link.

    Raises OSError if there is no such regular file, and LimitError if the file is longer.
    """
    with open(_regular(os.open(path, _FLAGS & ~os.O_NOFOLLOW), path), "rb") as file:
        limit.check_bytes(os.fstat(file.fileno()).st_size, f"'{path}'")
        return _content(file, path, limit)


def last_bytes(path: Path, most: int) -> bytes:
    """Return the last `most` bytes of a regular file; raises OSError if there is no such file."""
    with open(_opened(path, None), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def read_plain_text(path: Path, *, below: Path | None = None) -> str:
    """Return the text of a regular file that `read_plain` can read; replace each byte that is not UTF-8."""
    return read_plain(path, below=below).decode(errors="replace")


def evidence_text(path: Path, *, below: Path) -> str:
    """Return the text of a file in the evidence folder `below`; replace each byte that is not UTF-8.

    Raises HarnessError if the file is too long, or is not a regular file.
    """
    try:
        return read_plain_text(path, below=below)
    except OSError as error:
        raise HarnessError(
            f"A file of the evidence can't be read: {error}.", evidence=below
        ) from error


def _content(file: BinaryIO, path: Path, limit: Limit) -> bytes:
    content = file.read(limit.bytes + 1)
    # Check again: files below /proc report no size, and a file may grow.
    if len(content) > limit.bytes:
        raise limit.error(f"'{path}'")
    return content


def _opened(path: Path, below: Path | None) -> int:
    try:
        if below is None:
            descriptor = os.open(path, _FLAGS)
        else:
            descriptor = _opened_below(below, path.relative_to(below).parts)
    except ValueError as error:
        # The path contains a NUL character.
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    return _regular(descriptor, path)


def _regular(descriptor: int, path: Path) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "This is not a regular file", str(path))
    return descriptor


def _opened_below(folder: Path, parts: tuple[str, ...]) -> int:
    if ".." in parts or not parts:
        raise OSError(
            errno.EINVAL, "This is not a file of the folder", str(folder.joinpath(*parts))
        )
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(
                part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at
            )
            os.close(at)
            at = inner
        return os.open(parts[-1], _FLAGS, dir_fd=at)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder.joinpath(*parts))) from None
    finally:
        os.close(at)
