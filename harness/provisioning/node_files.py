"""The files of the node, below a folder that represents `/`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import functools
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READ_LIMIT_BYTES = 1 << 20
#: The random part in a name that Python's `tempfile.mkstemp` makes.
_RANDOM = re.compile("[a-z0-9_]{8}")


class UnsafePathError(ValueError):
    """The path must not be written or removed: it is empty, relative, `/`, or has `..`."""


class UnreadableFileError(Exception):
    """A file that exists could not be read as a regular file."""


class NodeFiles:
    """The files below `top`; methods take paths of the node, such as `/etc/os-release`.

    With a `top` other than `/`, provisioning acts on a test's folder or on the mounted disk of a
    machine, not on this system. Removing never follows symbolic links.
    """

    def __init__(self, top: Path) -> None:
        self.top = top

    def at(self, path: str) -> Path:
        """Return the path below `top` for the node's `path`; refuse a path that may be `top` itself."""
        return _place(self.top, path)

    def exists(self, path: str) -> bool:
        """Return whether the path exists, even if it is a dangling symbolic link."""
        place = self.at(path)
        return place.exists() or place.is_symlink()

    def names(self, directory: str) -> tuple[str, ...]:
        """Return the sorted names in a folder, or an empty tuple if there is no such folder."""
        try:
            with os.scandir(self.at(directory)) as entries:
                return tuple(sorted(entry.name for entry in entries))
        except OSError:
            return ()

    def is_directory(self, path: str) -> bool:
        """Return whether the path is a folder, not a symbolic link to a folder."""
        return self.at(path).is_dir() and not self.at(path).is_symlink()

    def is_newer(self, path: str, other: str) -> bool:
        """Return whether `path` was modified after `other`, or False if either is missing."""
        try:
            return self.at(path).stat().st_mtime_ns > self.at(other).stat().st_mtime_ns
        except OSError:
            return False

    def link_target(self, path: str) -> str | None:
        """Return the target of a symbolic link, or None for anything else."""
        try:
            return str(self.at(path).readlink())
        except OSError:
            return None

    def matching(self, directory: str, pattern: str) -> tuple[str, ...]:
        """Return the paths of the entries in `directory` whose names match a shell pattern."""
        return tuple(
            f"{directory}/{name}"
            for name in self.names(directory)
            if fnmatch.fnmatch(name, pattern)
        )

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None if it does not exist.

        Bytes that are not UTF-8 become U+FFFD, and a byte order mark is left out. For a FIFO or a
        device, UnreadableFileError is raised at once.

        Raises UnreadableFileError if the path exists but cannot be read.
        """
        content = self._content(path, READ_LIMIT_BYTES)
        return None if content is None else content.decode("utf-8-sig", "replace")

    def read_whole(self, path: str) -> str | None:
        """Return the text of a file that is to be rewritten, or None if the file does not exist.

        Bytes that are not UTF-8 become surrogates, which `rewrite` turns into the same bytes again.

        Raises UnreadableFileError if the path exists but cannot be read, or has more than a mebibyte.
        """
        content = self._content(path, READ_LIMIT_BYTES + 1)
        if content is not None and len(content) > READ_LIMIT_BYTES:
            raise UnreadableFileError(
                f"'{path}' has more than {READ_LIMIT_BYTES} bytes, and is not edited."
            )
        return None if content is None else content.decode(errors="surrogateescape")

    def _content(self, path: str, limit: int) -> bytes | None:
        try:
            # O_NONBLOCK: opening a FIFO without a writer would block.
            descriptor = os.open(self.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableFileError(f"'{path}' cannot be read: {error.strerror}.") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableFileError(f"'{path}' is not a regular file.")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(limit)
        except OSError as error:
            raise UnreadableFileError(f"'{path}' cannot be read: {error.strerror}.") from error
        finally:
            os.close(descriptor)

    def read_or_none(self, path: str) -> str | None:
        """Return the text of a file, or None if it is missing or cannot be read."""
        try:
            return self.read(path)
        except UnreadableFileError:
            return None

    def read_or_empty(self, path: str) -> str:
        """Return the text of a file, or an empty string if it is missing or cannot be read."""
        return self.read_or_none(path) or ""

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write one of provisioning's own files atomically: write a temporary file, then rename it.

        The written file belongs to root. Temporary files of earlier writes of the file, which a
        killed process or a loss of power left, are removed. Raises OSError.
        """
        self._write(path, text, mode, owner=None)

    def rewrite(self, path: str, text: str, *, check: Callable[[str], None] | None = None) -> None:
        """Replace the text of a user's file, which keeps its owner, group and mode.

        A file that does not exist is written as by `write`. If `path` is a symbolic link, the
        target of the link is replaced, and the link stays. `check` is called with the path of the
        new file before the new file replaces the old file; `check` may raise an exception to refuse
        the new file. Raises OSError, and UnsafePathError if a link leads out of `top`.
        """
        path = self._behind_links(path)
        try:
            now = self.at(path).stat()
        except FileNotFoundError:
            self._write(path, text, 0o644, owner=None, check=check)
        else:
            mode = stat.S_IMODE(now.st_mode)
            self._write(path, text, mode, owner=(now.st_uid, now.st_gid), check=check)

    def _behind_links(self, path: str) -> str:
        """Return the path of the file to which a symbolic link leads, or the path itself."""
        link = self.at(path)
        if not link.is_symlink():
            return path
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(link.stat().st_mode):
                raise OSError(errno.EINVAL, "The symbolic link leads to no regular file", path)
        top, target = self.top.resolve(), link.resolve()
        if not target.parent.is_dir():
            why = f"The symbolic link leads to '{target}', whose folder does not exist"
            raise FileNotFoundError(errno.ENOENT, why, path)
        if not target.is_relative_to(top):
            raise UnsafePathError(
                f"The symbolic link '{path}' is not followed: it leads to '{target}', out of '{top}'."
            )
        return f"/{target.relative_to(top)}"

    def _write(
        self,
        path: str,
        text: str,
        mode: int,
        owner: tuple[int, int] | None,
        check: Callable[[str], None] | None = None,
    ) -> None:
        target = self.at(path)
        _make_folder(target.parent)
        _refuse_special(target)
        with _without_left_over(target):
            descriptor, name = tempfile.mkstemp(prefix=_prefix(target), dir=target.parent)
            beside = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(text.encode(errors="surrogateescape"))
                    file.flush()
                    if owner is not None:
                        # Set the owner before the mode, since chown(2) may clear mode bits.
                        os.fchown(file.fileno(), *owner)
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                if check is not None:
                    check(f"{path.rpartition('/')[0]}/{beside.name}")
                beside.rename(target)
            except BaseException:
                with contextlib.suppress(OSError):
                    beside.unlink()
                raise

    def create(self, path: str, text: str) -> bool:
        """Create a file atomically with its text; return False if the path exists."""
        target = self.at(path)
        if target.exists():
            # hardlink_to, below, detects a process that creates the file after this check.
            return False
        _make_folder(target.parent)
        descriptor, beside = tempfile.mkstemp(prefix=".", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
                os.fchmod(file.fileno(), 0o644)
            # link(2) refuses an existing name, as open(O_EXCL) does, but gives the file its name
            # only when the file is complete.
            target.hardlink_to(beside)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
        return True

    def append(self, path: str, text: str) -> None:
        """Append text to a file; create the file and its folders if they are missing."""
        target = self.at(path)
        _make_folder(target.parent)
        with target.open("ab") as file:
            file.write(text.encode(errors="backslashreplace"))

    def make_directory(self, path: str) -> None:
        """Make a folder and its parents, unless they exist."""
        self.at(path).mkdir(parents=True, exist_ok=True)

    def remove_empty_folder(self, path: str) -> None:
        """Remove `path` if it is an empty folder; otherwise do nothing."""
        with contextlib.suppress(OSError):
            self.at(path).rmdir()

    def remove(self, path: str) -> None:
        """Remove a file, a link or a tree, if it exists.

        Raises OSError for the first part that cannot be removed, and UnsafePathError for `/`.
        """
        target = self.at(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


# Cached, since a run uses the same paths again and again.
@functools.lru_cache(maxsize=256)
def _place(top: Path, path: str) -> Path:
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or not any(p not in {"", "."} for p in parts):
        raise UnsafePathError(
            f"The path '{path}' is refused: expected an absolute path below '/' without '..'."
        )
    # The second part must not be absolute, since the result would then be outside `top`.
    return top / f".{path}"


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)


def _refuse_special(target: Path) -> None:
    """Refuse to write a device, FIFO or socket, such as `/dev/null`, since a rename would replace it."""
    with contextlib.suppress(FileNotFoundError):
        mode = target.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "It is no regular file")


def _prefix(target: Path) -> str:
    """Return the prefix of a target's temporary files, short enough for names of at most 255 bytes."""
    return f".{os.fsdecode(os.fsencode(target.name)[:240])}."


def _left_over(target: Path) -> Iterator[Path]:
    prefix = _prefix(target)
    with os.scandir(target.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(prefix)]
    return (target.with_name(n) for n in names if _RANDOM.fullmatch(n, len(prefix)))


@contextlib.contextmanager
def _without_left_over(target: Path) -> Iterator[None]:
    """Remove temporary files that earlier writes of `target` left, if no other process writes.

    Each writer holds a shared lock on the folder, and the lock ends with the writer's process. So a
    process that gets the exclusive lock knows that no temporary file in the folder is in use.
    """
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in _left_over(target):
                left.unlink()
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_SH)
        yield
    finally:
        os.close(folder)
