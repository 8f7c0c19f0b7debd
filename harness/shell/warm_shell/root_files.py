"""Files in the throw-away root, from outside of it."""

from __future__ import annotations

from pathlib import Path

from harness.errors import HarnessError

_MOST_LINKS = 40


class RootFiles:
    """The files below `root`, by the names that processes inside of it use.

    A symbolic link in it points into it: followed plainly, an absolute one would lead to a file of
    the host.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def place(self, path: str | Path) -> Path:
        """Return where the file `path` of the root is found from outside; links are followed."""
        return self._place(path, follow_last=True)

    def _place(self, path: str | Path, *, follow_last: bool) -> Path:
        if not str(path).startswith("/"):
            raise HarnessError(f"'{path}' is not an absolute path; the root has no other.")
        left = list(Path(path).parts[1:])
        at = self.root
        links = 0
        while left:
            part = left.pop(0)
            if part == "..":
                at = at.parent if at != self.root else at
                continue
            at = at / part
            if at.is_symlink() and (left or follow_last):
                links += 1
                if links > _MOST_LINKS:
                    raise HarnessError(f"'{path}' has too many symbolic links.")
                target = at.readlink()
                at = self.root if target.is_absolute() else at.parent
                left = [part for part in target.parts if part != "/"] + left
        return at

    def kernel_path(self, path: str | Path) -> Path | None:
        """Return what of the kernel's files has to be faked before `path` can be written.

        That is a file of `/proc` that exists, or else a directory such as `/sys/module`; None
        where the path is an ordinary file's.
        """
        inside = Path("/") / self.place(path).relative_to(self.root)
        parts = inside.parts[1:]
        if len(parts) < 2 or parts[0] not in {"sys", "proc"}:
            return None
        if parts[0] == "proc" and self.place(inside).is_file():
            return inside
        folder = Path("/", *parts[:2])
        if len(parts) == 2 or not self.place(folder).is_dir():
            raise HarnessError(
                f"'{path}' can't be faked: the kernel shows no '{folder}' to add to."
            )
        return folder

    def write(self, path: str | Path, data: bytes, mode: int) -> None:
        """Write a file, and the directories that lead to it."""
        place = self.place(path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            place.chmod(mode)
        except OSError as error:
            raise HarnessError(
                f"'{path}' can't be written in the throw-away root: {error}."
            ) from None

    def remove(self, path: str | Path) -> None:
        """Remove a file or a symbolic link; it may be absent."""
        place = self._place(path, follow_last=False)
        # In a read-only folder the kernel refuses to remove even what is not there.
        if place.is_symlink() or place.exists():
            place.unlink()
