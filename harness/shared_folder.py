"""Opens files in folders that other users can write to, and finds folders that only this user can use.

A user who may write to a folder may put anything there: a FIFO without a writer, a link to another
file, a huge file. So files are opened relative to the folder's descriptor, without following links
and without blocking, and files are checked before use.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import pwd
import secrets
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.limits import SHARED_FILE, SHARED_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class StrangeFileError(HarnessError):
    """A file has the name of a file of the harness, but the harness did not make this file."""


@dataclass(frozen=True, kw_only=True)
class SharedFile:
    """An open regular file of limited size in a shared folder; its owner may write to the folder."""

    path: Path
    descriptor: int
    state: os.stat_result

    @property
    def owner(self) -> str:
        return user_name(self.state.st_uid)

    @property
    def is_trusted(self) -> bool:
        """Return whether only root and this user can write to the file."""
        is_ours = self.state.st_uid in {0, os.geteuid()}
        return is_ours and not self.state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

    def read(self) -> bytes:
        """Return the content; raises StrangeFileError if the file has become too large."""
        content = os.pread(self.descriptor, SHARED_FILE.bytes + 1, 0)
        if len(content) > SHARED_FILE.bytes:
            raise _strange(self.path, self.state, _too_large())
        return content


def open_folder(path: Path) -> int:
    """Return a descriptor of a folder; raises OSError if `path` is a link, or not a folder."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@contextlib.contextmanager
def opened_file(
    folder: int, path: Path, *, flags: int = os.O_RDONLY, is_ours: bool = False
) -> Iterator[SharedFile]:
    """Open the file `path` in the folder with the descriptor `folder` for a `with` block.

    Raises FileNotFoundError if there is no such file. Raises StrangeFileError, which names the
    file, if the file can't be a file that the harness made: the file is not regular, has several
    hard links, is too large, or has an owner without access to the folder. With `is_ours`, another
    user's file is refused too.
    """
    # Only root can create a device in the folder, so opening a file has no side effects.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path.name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        _require_plausible(path, os.stat(path.name, dir_fd=folder, follow_symlinks=False), folder)
        raise StrangeFileError(
            f"'{path}' can't be opened ({error.strerror}), so it is not a file of the "
            "harness; remove this file, or ask the file's owner to remove it."
        ) from error
    try:
        state = os.fstat(descriptor)
        if not state.st_nlink:
            raise FileNotFoundError(path)
        _require_plausible(path, state, folder)
        if is_ours and state.st_uid != os.geteuid():
            raise _strange(path, state, "another user has replaced it")
        yield SharedFile(path=path, descriptor=descriptor, state=state)
    finally:
        os.close(descriptor)


def create_folders(folder: Path, mode: int) -> None:
    """Create `folder` and its missing parents with `mode`, less the bits of the umask.

    Raises OSError if a folder can't be created, or if another user has created the folder first.
    """
    missing = itertools.takewhile(lambda each: not each.exists(), (folder, *folder.parents))
    for each in reversed([*missing]):
        with contextlib.suppress(FileExistsError):
            each.mkdir(mode=mode)
        owner = each.lstat().st_uid
        if owner not in {0, os.geteuid()}:
            raise PermissionError(errno.EPERM, f"user {user_name(owner)} has made it", str(each))


def names_in(folder: int, path: Path) -> list[str]:
    """Return the names of a folder's files; raises LimitError if the folder has too many files."""
    most = SHARED_FOLDER.value
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, most + 1)]
    if len(names) > most:
        raise SHARED_FOLDER.error(f"'{path}'")
    return names


def _too_large() -> str:
    return f"it has more than {SHARED_FILE.value} KiB, which is the limit '{SHARED_FILE.name}'"


def _require_plausible(path: Path, state: os.stat_result, folder: int) -> None:
    if not stat.S_ISREG(state.st_mode):
        kind = _KINDS.get(stat.S_IFMT(state.st_mode), "no regular file")
        raise _strange(path, state, f"it is {kind}")
    if state.st_nlink > 1:
        raise _strange(path, state, "it has another name (a hard link)")
    if state.st_size > SHARED_FILE.bytes:
        raise _strange(path, state, _too_large())
    if state.st_uid not in {0, os.geteuid()}:
        shared = os.fstat(folder)
        is_of_group = bool(shared.st_mode & stat.S_IWGRP) and state.st_gid == shared.st_gid
        if state.st_uid != shared.st_uid and not is_of_group:
            raise _strange(path, state, "its group is not the folder's group")


def _strange(path: Path, state: os.stat_result, why: str) -> StrangeFileError:
    return StrangeFileError(
        f"'{path}' of user {user_name(state.st_uid)} is not a file of the harness: {why}; remove this file."
    )


@functools.cache
def user_name(number: int) -> str:
    """Return the name of the user with the id `number`, or the id as text if no user has this id."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def is_private(state: os.stat_result) -> bool:
    """Return whether only this user and root can use a folder."""
    is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
    return is_ours and not state.st_mode & _OTHERS


def private_folder(parent: Path, name: str) -> Path:
    """Return this user's private folder in `parent`, a folder to which everybody may write.

    A missing private folder is created. If another user has already used the private folder's name,
    this user's folder gets a name with a suffix that nobody can guess. All processes of a user find
    the same private folder by the folder's owner, since a user can't make a folder that another
    user owns.
    """
    own = parent / f"{name}-{os.geteuid()}"
    if _is_private_folder(own):
        return own
    others = _private_folders(own)
    if others:
        return others[0]
    try:
        return _created(own)
    except FileExistsError:
        if _is_private_folder(own):
            return own
    # The suffix begins with the time, so that concurrent processes all use the oldest folder.
    _created(own.with_name(f"{own.name}.{time.time_ns() // 10**6:011x}{secrets.token_hex(2)}"))
    return _private_folders(own)[0]


def _created(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise
    except OSError as error:
        raise RequirementError(
            f"The folder '{folder}' can't be created ({error.strerror}); let user {os.geteuid()} write to "
            f"'{folder.parent}', or free some space there."
        ) from error
    return folder


def _private_folders(own: Path) -> list[Path]:
    try:
        names = sorted(each.name for each in own.parent.glob(f"{own.name}.*"))
    except OSError:
        return []
    return [path for name in names if _is_private_folder(path := own.with_name(name))]


def _is_private_folder(path: Path) -> bool:
    try:
        return is_private(path.lstat())
    except OSError:
        return False
