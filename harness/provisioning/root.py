"""The node's files, below a root that tests and the host can put anywhere."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import stat
import tempfile
from pathlib import Path

READ_LIMIT_BYTES = 1 << 20


class UnsafePathError(ValueError):
    """A path that nothing may be written to or removed at: empty, relative, `/`, or upwards."""


class UnreadableFileError(Exception):
    """A file that exists could not be read as a regular file."""


class Root:
    """The folder that stands for `/`; every path given to its methods is the node's own.

    The prefix is what keeps a test, or a machine's disk mounted on a host, apart from the
    system this process runs on. Symbolic links are never followed when removing.
    """

    def __init__(self, top: Path) -> None:
        self.top = top

    def at(self, path: str) -> Path:
        """Return where the node's `path` lies; refuse a path that could mean the root itself."""
        parts = path.split("/")
        if not path.startswith("/") or ".." in parts or not any(p not in {"", "."} for p in parts):
            raise UnsafePathError(
                f"The path '{path}' is refused: expected an absolute path below '/' without '..'."
            )
        # Never an absolute second part, which would leave `top` for the real root.
        return self.top / f".{path}"

    def exists(self, path: str) -> bool:
        """Tell whether anything is there, a dangling symbolic link included."""
        place = self.at(path)
        return place.is_symlink() or place.exists()

    def names(self, directory: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted; none where there is no such folder."""
        try:
            return tuple(sorted(entry.name for entry in self.at(directory).iterdir()))
        except OSError:
            return ()

    def is_directory(self, path: str) -> bool:
        """Tell whether a real folder, not a link to one, is there."""
        return self.at(path).is_dir() and not self.at(path).is_symlink()

    def link_target(self, path: str) -> str | None:
        """Return where a symbolic link points, or None for anything else."""
        try:
            return str(self.at(path).readlink())
        except OSError:
            return None

    def matching(self, directory: str, pattern: str) -> tuple[str, ...]:
        """Return the paths of the names in `directory` that match a shell pattern."""
        return tuple(
            f"{directory}/{name}"
            for name in self.names(directory)
            if fnmatch.fnmatch(name, pattern)
        )

    def read(self, path: str) -> str | None:
        """Return a file's text, or None where nothing is there.

        Bytes that are not UTF-8 become U+FFFD. A FIFO or device is refused, not waited for.

        Raises UnreadableFileError where something is there that cannot be read.
        """
        try:
            # O_NONBLOCK: opening a FIFO without a writer would wait for ever.
            descriptor = os.open(self.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableFileError(f"'{path}' cannot be read: {error.strerror}.") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableFileError(f"'{path}' is not a regular file.")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(READ_LIMIT_BYTES).decode(errors="replace")
        except OSError as error:
            raise UnreadableFileError(f"'{path}' cannot be read: {error.strerror}.") from error
        finally:
            os.close(descriptor)

    def read_or_none(self, path: str) -> str | None:
        """Return a file's text, or None where it is missing or cannot be read."""
        try:
            return self.read(path)
        except UnreadableFileError:
            return None

    def read_or_empty(self, path: str) -> str:
        """Return a file's text, empty where it is missing or cannot be read."""
        return self.read_or_none(path) or ""

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a whole file beside its target and rename it, so that nobody reads half of it.

        Raises OSError where the disk refuses.
        """
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            Path(beside).rename(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
            raise

    def create(self, path: str, text: str) -> bool:
        """Create a file with all of its text at once; False, and nothing changed, if it exists."""
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, beside = tempfile.mkstemp(prefix=".", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
                os.fchmod(file.fileno(), 0o644)
            # link(2) refuses an existing name, which open(O_EXCL) does too, but it shows the
            # file only when it is complete.
            target.hardlink_to(beside)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
        return True

    def append(self, path: str, text: str) -> None:
        """Add text to a file's end, making the file and its folders where they are missing."""
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(text.encode())

    def make_directory(self, path: str) -> None:
        """Make a folder and those above it; silent where it is there."""
        self.at(path).mkdir(parents=True, exist_ok=True)

    def remove(self, path: str) -> None:
        """Remove a file, a link or a whole tree; silent where nothing is there.

        Raises OSError for the first thing that could not be removed; UnsafePathError for `/`.
        """
        target = self.at(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
