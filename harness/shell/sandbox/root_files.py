"""Reads and writes files in the throw-away root from a process outside of the root.

Code under test, which may run at the same time, could replace a directory by a symbolic link
between the check and the use of a path. This module does not check paths before their use: the
kernel resolves each path below the throw-away root (openat2 with RESOLVE_IN_ROOT), and later
operations use the opened descriptors. Source: openat2(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.limits import SHELL_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_KERNELS_OWN = {0x9FA0: "procfs", 0x62656572: "sysfs"}
_STATFS_BYTES = 256
_MOST_TRIES = 1000
"""How often to retry openat2, which fails if a rename happens while the kernel resolves `..`."""
_MOST_LINKS = 40
_HOST = Path("/")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def _open_in(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a file; resolve its path as for a process whose root directory is `root`."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("the path contains a NUL byte")
    how = _How(flags | os.O_CLOEXEC, mode, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    number = errno.EAGAIN
    for _ in range(_MOST_TRIES):
        fd: int = _libc.syscall(_SYS_OPENAT2, root, name, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in {errno.EAGAIN, errno.EINTR}:
            break
    if number == errno.ENOSYS:
        raise RequirementError(
            "Files of the throw-away root need the system call 'openat2', which is refused here; "
            "use Linux 5.6 or later, or a container whose seccomp profile allows it."
        )
    raise OSError(number, os.strerror(number))


class RootFiles:
    """The files below `root`; methods take the paths that processes inside the root use.

    A symbolic link never leads out of the root, even if code in the root creates links at the same
    time. The path that `place` returns is not protected against symbolic links; use such a path
    only while no code runs in the root. Methods raise HarnessError for an operation that fails.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    # --- reading -------------------------------------------------------------------------

    def read(self, path: str | Path) -> bytes | None:
        """Return the content of a regular file, or None if there is no such file."""
        with self._acting(path, "read"):
            try:
                with self._open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) as fd:
                    if not stat.S_ISREG(os.fstat(fd).st_mode):
                        return None
                    with open(fd, "rb", closefd=False) as file:
                        data = file.read(SHELL_OUTPUT.bytes + 1)
            except (FileNotFoundError, NotADirectoryError):
                return None
        SHELL_OUTPUT.check_bytes(len(data), f"the file '{path}' of the code under test")
        return data

    def status(self, path: str | Path, *, follow: bool = True) -> os.stat_result | None:
        """Return the result of `stat` (`lstat` with `follow=False`), or None if the path does not exist."""
        with self._acting(path, "looked at"):
            try:
                with self._open(path, os.O_PATH if follow else os.O_PATH | os.O_NOFOLLOW) as fd:
                    return os.fstat(fd)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def is_file(self, path: str | Path) -> bool:
        """Return whether the path is a regular file; links are followed."""
        found = self.status(path)
        return found is not None and stat.S_ISREG(found.st_mode)

    def is_folder(self, path: str | Path) -> bool:
        """Return whether the path is a directory; links are followed."""
        found = self.status(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def target(self, path: str | Path) -> str | None:
        """Return the target of a symbolic link, or None if the path is not a link."""
        with self._acting(path, "read"):
            try:
                with self._parent(path) as (folder, name):
                    return os.readlink(name, dir_fd=folder)
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EINVAL}:
                    return None
                raise

    def names(self, path: str | Path) -> list[str]:
        """Return the sorted names in a directory, or [] if there is no such directory."""
        with self._acting(path, "read"):
            try:
                with self._open(path, _FOLDER) as fd:
                    return sorted(os.listdir(fd))  # noqa: PTH208 - a descriptor
            except (FileNotFoundError, NotADirectoryError):
                return []

    # --- writing -------------------------------------------------------------------------

    def write(self, path: str | Path, data: bytes, mode: int = 0o644) -> None:
        """Write a regular file; make missing parent directories."""
        with self._acting(path, "written"):
            place = self._behind_links(path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
            with self._open(place, flags, mode=0o600) as fd:
                # devices and files of the kernel belong to the host: write regular files only
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file")
                if self.root != _HOST:
                    _expect_no_kernel_file(fd)
                os.ftruncate(fd, 0)
                with open(fd, "wb", closefd=False) as file:
                    file.write(data)
                os.fchmod(fd, mode)

    def make_folder(self, path: str | Path) -> None:
        """Make a directory and its parent directories, unless they exist."""
        with self._acting(path, "made"), self._folder(str(path), make=True):
            pass

    def link(self, path: str | Path, target: str) -> None:
        """Make a symbolic link; make missing parent directories."""
        with self._acting(path, "made"), self._parent(path, make=True) as (folder, name):
            os.symlink(target, name, dir_fd=folder)

    def remove(self, path: str | Path) -> None:
        """Remove a file or a symbolic link, if there is one."""
        with self._acting(path, "removed"):
            try:
                with self._parent(path) as (folder, name):
                    # Check first: in a read-only folder, unlink of a missing file fails with EROFS.
                    os.stat(name, dir_fd=folder, follow_symlinks=False)
                    os.unlink(name, dir_fd=folder)
            except (FileNotFoundError, NotADirectoryError):
                return

    def remove_tree(self, path: str | Path) -> None:
        """Remove a directory, if it exists, and its content, without following links."""
        with self._acting(path, "removed"):
            try:
                with self._parent(path) as (folder, name):
                    # rmtree opens each directory relative to its parent, without following links
                    shutil.rmtree(f"/proc/self/fd/{folder}/{name}")
            except (FileNotFoundError, NotADirectoryError):
                return

    # --- how paths are resolved ----------------------------------------------------------

    @contextlib.contextmanager
    def _acting(self, path: str | Path, what: str) -> Iterator[None]:
        if not str(path).startswith("/"):
            raise HarnessError(
                f"The throw-away root needs an absolute path, but '{path}' is not one."
            )
        try:
            yield
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            if isinstance(error, RecursionError):
                why = "it has too many folders"
            raise HarnessError(
                f"'{path}' can't be {what} in the throw-away root: {why}."
            ) from None

    @contextlib.contextmanager
    def _open(self, path: str | Path, flags: int, *, mode: int = 0) -> Iterator[int]:
        root = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # the process that had this root may have ended, and a new process may have its PID
            if self.root != _HOST and _number(os.fstat(root)) == _number(_HOST.stat()):
                raise HarnessError("The throw-away root has ended; its files are gone.")
            fd = _open_in(root, str(path), flags, mode)
        finally:
            os.close(root)
        try:
            yield fd
        finally:
            os.close(fd)

    def _behind_links(self, path: str | Path) -> str:
        """Return the path at the end of the chain of symbolic links that begins at `path`.

        Make missing parent directories.
        """
        place = str(path)
        for _ in range(_MOST_LINKS):
            with self._parent(place, make=True) as (folder, name):
                try:
                    target = os.readlink(name, dir_fd=folder)
                except OSError:
                    return place
            place = target if target.startswith("/") else f"{place.rpartition('/')[0]}/{target}"
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    @contextlib.contextmanager
    def _parent(self, path: str | Path, *, make: bool = False) -> Iterator[tuple[int, str]]:
        folder, _, name = str(path).rstrip("/").rpartition("/")
        if name in {"", ".", ".."}:
            raise OSError(errno.EISDIR, "the path names a directory")
        with self._folder(folder or "/", make=make) as fd:
            yield fd, name

    @contextlib.contextmanager
    def _folder(self, path: str, *, make: bool) -> Iterator[int]:
        try:
            opened = self._open(path, _FOLDER)
            fd = opened.__enter__()
        except FileNotFoundError:
            if not make:
                raise
            made = contextlib.suppress(FileExistsError)
            with self._parent(path, make=True) as (above, name), made:
                os.mkdir(name, 0o755, dir_fd=above)
            opened = self._open(path, _FOLDER)
            fd = opened.__enter__()
        try:
            yield fd
        finally:
            opened.__exit__(None, None, None)

    # --- places --------------------------------------------------------------------------

    def place(self, path: str | Path) -> Path:
        """Return the path by which processes outside of the root reach the root's file `path`.

        Symbolic links are followed.

        The result is valid only while no code runs in the root.
        """
        with self._acting(path, "found"):
            left = list(Path(path).parts[1:])
            at = self.root
            links = 0
            while left:
                part = left.pop(0)
                if part == "..":
                    at = at.parent if at != self.root else at
                    continue
                at = at / part
                try:
                    target = at.readlink()
                except OSError:  # not a link, or no longer a link
                    continue
                links += 1
                if links > _MOST_LINKS:
                    raise HarnessError(f"'{path}' has too many symbolic links.")
                at = self.root if target.is_absolute() else at.parent
                left = [part for part in target.parts if part != "/"] + left
            return at

    def kernel_path(self, path: str | Path) -> Path | None:
        """Return the file or directory to replace before `path` can be written.

        A writable replacement must be mounted over the returned file or directory.

        For an existing file of `/proc`, the result is the file itself; otherwise the result is a
        directory such as `/sys/module`. The result is None for a path outside of `/sys` and
        `/proc`.
        """
        inside = Path("/") / self.place(path).relative_to(self.root)
        parts = inside.parts[1:]
        if len(parts) < 2 or parts[0] not in {"sys", "proc"}:
            return None
        if parts[0] == "proc" and (parts[1].isdigit() or parts[1].endswith("self")):
            raise HarnessError(
                f"'{path}' can't be faked: this file of procfs belongs to a process."
            )
        if parts[0] == "proc" and self.is_file(inside):
            return inside
        folder = Path("/", *parts[:2])
        if len(parts) == 2 or not self.is_folder(folder):
            raise HarnessError(
                f"'{path}' can't be faked: the kernel provides no directory '{folder}', to which the "
                "file would be added."
            )
        return folder


def _number(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _expect_no_kernel_file(fd: int) -> None:
    """Raise OSError for a file of procfs or sysfs, because a write to such a file would change the host's kernel."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(fd, found) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    kind = _KERNELS_OWN.get(ctypes.c_long.from_buffer(found).value)
    if kind is not None:
        raise OSError(errno.EROFS, f"it is a file of {kind}")
