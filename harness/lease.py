"""Leases, which are file locks on resources of the host; a lease ends with the holding process.

The kernel releases a `flock` when the last descriptor of the open file is closed. A lease needs no
daemon, no PID file and no clean-up after `kill -9`: a resource without a holder can be leased
again, or removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from harness.errors import HarnessError
from harness.provisioning.wait import Observation, wait_for
from harness.shared_folder import create_folders, private_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioning.wait import Deadline

_LEASE_NAME = "lease"
_GATE_NAME = ".gate"
_GATE_TIMEOUT_S = 60.0
#: The flags for opening a lock file: a link is not followed, and opening a FIFO does not block.
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_private_folder(folder: Path) -> Path:
    """Create `folder` and its missing parents, accessible to this user only, and return `folder`.

    Existing folders keep their mode: they may be shared, such as '/tmp'. Raises HarnessError if
    `folder` can't be created. The error is HarnessError and not RequirementError, which would skip
    the tests: a run that can't write must fail.
    """
    try:
        create_folders(folder, 0o700)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise HarnessError(
            f"The folder '{folder}' can't be created ({error.strerror}); choose a writable folder; "
            "XDG_CACHE_HOME sets the folder of the cache, and --evidence-dir the folder of the evidence."
        ) from error
    return folder


@contextlib.contextmanager
def hold(path: Path, *, timeout_s: float, what: str) -> Iterator[None]:
    """Hold a lock on the file `path` while the context is open.

    Raises HarnessError if another process holds the lock for longer than `timeout_s` seconds, or
    if the lock file can't be opened.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout_s)
    except Timeout as error:
        raise HarnessError(
            f"Waited {timeout_s:.0f} s for {what}, which another process has locked with "
            f"the file '{path}'; wait until that process ends, or end it (`fuser '{path}'` prints its id)."
        ) from error
    except OSError as error:
        raise HarnessError(
            f"The lock file '{path}' can't be opened ({error.strerror}); let user {os.geteuid()} write to "
            f"'{path.parent}', free some space there, or remove '{path}' if it is not a regular file."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def leased_folder(parent: Path, *, prefix: str) -> Iterator[Path]:
    """Yield a new private folder under `parent`, and remove the folder at the end of the context.

    The folder is leased while the context is open; if the process is killed, `sweep` removes the
    folder later.
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
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Yield a new private folder for temporary files, below this user's folder `name`.

    The new folder is removed at the end of the context. The folders that killed processes left
    under `name` are removed before the new folder is made.
    """
    parent = private_folder(Path(tempfile.gettempdir()), name)
    sweep(parent)
    with leased_folder(parent, prefix="run") as folder:
        yield folder


def abandoned(parent: Path) -> list[Path]:
    """Return the folders under `parent` whose leasing process has ended, and which `sweep` would remove."""
    return _abandoned(parent, remove=False)


def sweep(parent: Path) -> list[Path]:
    """Remove the folders under `parent` whose leasing process has ended, and return the removed paths."""
    return _abandoned(parent, remove=True)


def _abandoned(parent: Path, *, remove: bool) -> list[Path]:
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
                # The folder is in use, or belongs to another user.
                continue
            if remove:
                shutil.rmtree(folder, ignore_errors=True)
            lease.release()
            if not remove or not folder.exists():
                swept.append(folder)
    return swept


def _gate(parent: Path) -> contextlib.AbstractContextManager[None]:
    """Serialise the creation and the sweeping of folders, so that no folder is swept before it is leased."""
    return hold(
        parent / _GATE_NAME, timeout_s=_GATE_TIMEOUT_S, what="the creation and removal of folders"
    )


@contextlib.contextmanager
def hold_shared(path: Path, *, deadline: Deadline) -> Iterator[None]:
    """Hold a shared lock on `path`; any number of processes can hold this lock at the same time.

    If another process has an exclusive lock, wait until that lock is released. Raises
    FileNotFoundError if the file does not exist or is removed during the wait, and
    WaitTimeoutError at the deadline.
    """

    def poll() -> Observation[int]:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        if _try_lock(path, descriptor, fcntl.LOCK_SH):
            return Observation(descriptor, "shared")
        os.close(descriptor)
        return Observation(None, f"'{path}' is locked exclusively")

    descriptor = wait_for(f"a shared lock on '{path}'", poll, deadline, interval_s=0.02)
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def try_exclusive(path: Path) -> Iterator[bool]:
    """Try to lock the file `path` exclusively, and yield whether the lock was obtained.

    If the file is missing, yield True, since nobody uses a missing file.
    """
    try:
        # NFS grants an exclusive lock only on a file that was opened for writing.
        descriptor = os.open(path, os.O_RDWR | _FLAGS)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _try_lock(path, descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _try_lock(path: Path, descriptor: int, how: int) -> bool:
    """Try to lock `descriptor`; return whether it is locked, and its file is still at `path`."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        there = path.stat()
    except (BlockingIOError, FileNotFoundError):
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
