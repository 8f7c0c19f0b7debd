"""A file-locked claim on something of the host, void when its holder dies.

The kernel drops a `flock` with the last descriptor of the process that holds it, so a claim needs
no daemon, no PID files and no clean-up after `kill -9`: what nobody holds any more can be taken,
or swept away.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LEASE_NAME = "lease"
_GATE_NAME = ".gate"
_GATE_TIMEOUT_S = 60.0


def make_private_folder(folder: Path) -> Path:
    """Create `folder` with its parents, open to this user alone, and return it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
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
            if not folder.is_dir():
                continue
            lease = FileLock(folder / _LEASE_NAME)
            try:
                lease.acquire(timeout=0)
            except Timeout:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            lease.release()
            swept.append(folder)
    return swept


def _gate(parent: Path) -> contextlib.AbstractContextManager[None]:
    """Serialise the making and the sweeping of folders, so that none is swept half-made."""
    return hold(parent / _GATE_NAME, timeout_s=_GATE_TIMEOUT_S, what="the folder's gate")
