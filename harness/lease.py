"""A file-locked claim on something of the host, void when its holder dies.

The kernel drops a `flock` with the last descriptor of the process that holds it, so a claim needs
no daemon, no PID files and no clean-up after `kill -9`: what nobody holds any more can be taken,
or swept away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from harness.errors import HarnessError, RequirementError
from harness.provisioning.wait import Observation, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.provisioning.wait import Deadline

_LEASE_NAME = "lease"
_GATE_NAME = ".gate"
_GATE_TIMEOUT_S = 60.0


def make_private_folder(folder: Path) -> Path:
    """Create `folder` and the parents it lacks, open to this user alone, and return it.

    Folders that are there already keep their mode: they may be the user's own, such as '/tmp'.
    Raises RequirementError where it can't be made.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise RequirementError(
            f"The folder '{folder}' can't be made ({error.strerror}); choose one that you may "
            "write, by XDG_CACHE_HOME for the cache or by --evidence-dir for evidence."
        ) from error
    return folder


@contextlib.contextmanager
def hold(path: Path, *, timeout_s: float, what: str) -> Iterator[None]:
    """Hold the lock file `path`.

    Raises HarnessError when somebody else holds it for longer than `timeout_s` seconds.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout_s)
    except Timeout as error:
        raise HarnessError(
            f"Waited {timeout_s:.0f} s for {what}, which another process holds by the lock "
            f"'{path}'; end that process (`fuser '{path}'` names it) or wait for it."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def leased_folder(parent: Path, *, prefix: str, keep: bool = False) -> Iterator[Path]:
    """Give a new private folder under `parent` that is removed at the end.

    The folder is leased for as long as it is in use: `sweep` removes those whose holder died.
    With `keep` it stays, without a lease holder, until the next sweep.
    """
    make_private_folder(parent)
    with _gate(parent):
        folder = parent / f"{prefix}-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700)
        lease = FileLock(folder / _LEASE_NAME)
        lease.acquire(timeout=0)
    try:
        yield folder
    finally:
        lease.release()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path) -> list[Path]:
    """Remove the folders under `parent` whose holder is dead, and return them."""
    if not parent.is_dir():
        return []
    swept: list[Path] = []
    with _gate(parent):
        for folder in sorted(parent.iterdir()):
            if folder.is_symlink() or not folder.is_dir():
                continue
            lease = FileLock(folder / _LEASE_NAME)
            try:
                lease.acquire(timeout=0)
            except (Timeout, OSError):
                # In use, or another user's.
                continue
            shutil.rmtree(folder, ignore_errors=True)
            lease.release()
            if not folder.exists():
                swept.append(folder)
    return swept


def _gate(parent: Path) -> contextlib.AbstractContextManager[None]:
    """Serialise the making and the sweeping of folders, so that none is swept half-made."""
    return hold(parent / _GATE_NAME, timeout_s=_GATE_TIMEOUT_S, what="the folder's gate")


@contextlib.contextmanager
def share(path: Path, *, deadline: Deadline) -> Iterator[None]:
    """Hold a share in the use of what the file `path` stands for; any number may.

    Raises FileNotFoundError when the file is not there, or is taken away while this waits for
    the `sole` user of it; WaitTimeoutError when that one takes beyond the deadline.
    """

    def look() -> Observation[int]:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if _locks(path, descriptor, fcntl.LOCK_SH):
            return Observation(descriptor, "shared")
        os.close(descriptor)
        return Observation(None, f"'{path}' is locked by somebody who wants it alone")

    descriptor = wait_for(f"a share in '{path}'", look, deadline, interval_s=0.02)
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def sole(path: Path) -> Iterator[bool]:
    """Try to be the only user of what the file `path` stands for, and give whether it worked.

    Nobody uses what has no such file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _locks(path, descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _locks(path: Path, descriptor: int, how: int) -> bool:
    """Tell whether the descriptor could be locked and `path` still is the file that it opened."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        there = path.stat()
    except (BlockingIOError, FileNotFoundError):
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
