"""Checks that the disk has space for a folder that a cache makes, and explains a full disk."""

from __future__ import annotations

import contextlib
import errno
import shutil
from typing import TYPE_CHECKING

from harness.errors import RequirementError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The error numbers that mean a full disk or an exceeded quota."""

_FULL_MIB = 32
"""If a machine fails while fewer MiB than this are free, the harness names the full disk as the cause.

SIGBUS kills QEMU, without a message, when the disk has no free block for a page of the memory file.
"""


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class DiskSpace:
    """The free space in the file system of `folder`.

    `remedy` is the clause that ends each error message, after a semicolon.
    """

    def __init__(self, folder: Path, *, free: Callable[[Path], int], remedy: str) -> None:
        self._folder = folder
        self._free = free
        self._remedy = remedy

    def require(self, what: str, needed_mib: int) -> None:
        """Raise RequirementError if fewer than `needed_mib` MiB are free for making `what`."""
        free_mib = self._free_mib()
        if free_mib < needed_mib:
            raise RequirementError(
                f"Making the {what} needs {needed_mib} MiB of free space in '{self._folder}', "
                f"but {free_mib} MiB are free; {self._remedy}."
            )

    @contextlib.contextmanager
    def explain_full_disk(
        self, what: str, needed_mib: int, *, any_failure: bool = False
    ) -> Iterator[None]:
        """Raise RequirementError in place of an error that a full disk caused.

        If `any_failure` is true and the disk is nearly full, replace every error in this way.
        """
        try:
            yield
        except RequirementError:
            raise
        except Exception as error:
            if not _is_about_space(error) and not (any_failure and self._free_mib() < _FULL_MIB):
                raise
            raise RequirementError(
                f"The disk of '{self._folder}' became full while the {what} was made "
                f"({needed_mib} MiB are needed, {self._free_mib()} MiB were left); {self._remedy}."
            ) from error

    def _free_mib(self) -> int:
        return self._free(self._folder) >> 20


def _is_about_space(error: BaseException) -> bool:
    """Return whether a full disk or an exceeded quota is among the causes of an error."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and at.errno in FULL:
            return True
        at = at.__cause__ or at.__context__
    return False
