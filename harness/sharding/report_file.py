"""Writes report files; reads report files of other hosts if they are regular and not too large."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, BinaryIO

from harness.errors import BadInputError
from harness.foreign_files import open_plain
from harness.foreign_json import ForeignJsonError, parse_json
from harness.limits import REPORT_FILE_MIB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write_report(path: Path, content: bytes) -> None:
    """Write a temporary file, and rename it to `path`; on an error, leave no temporary file."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def open_report(path: Path) -> Iterator[BinaryIO]:
    """Open a report's file.

    Links and FIFOs are refused: a link could disclose a file of this host, and a FIFO would make
    the reader wait for ever. Raises BadInputError, which names the file, if the file can't be
    opened, or can't be read in the `with` block. Raises LimitError for a file that is too large.
    """
    try:
        with open_plain(path, limit=REPORT_FILE_MIB) as file:
            yield file
    except OSError as error:
        # For a link that is not followed, the kernel reports "Too many levels of symbolic links".
        reason = "it is a link" if path.is_symlink() else error.strerror
        raise BadInputError(f"The file can't be read: {reason}.", source=str(path)) from error


def read_report(path: Path) -> bytes:
    """Return the content of a report's file; raises the errors of `open_report`."""
    with open_report(path) as file:
        content = file.read(REPORT_FILE_MIB.bytes + 1)
    REPORT_FILE_MIB.check_bytes(len(content), str(path))
    return content


def read_json(path: Path) -> object:
    """Return the content of a JSON report.

    Raises BadInputError, which names the file, if the file is unreadable or not JSON.
    """
    try:
        value: object = parse_json(read_report(path))
    except ForeignJsonError as error:
        raise BadInputError(f"The file is not JSON: {error}.", source=str(path)) from error
    return value


def require_own_folder(folder: Path) -> None:
    """Raise BadInputError if `folder` is a link."""
    if folder.is_symlink():
        raise BadInputError(
            "This path is a link, but a folder of a shard's reports was expected.",
            source=str(folder),
        )
