"""Copies a project, so that mutants change the copy and never the user's files."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError, HarnessError
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from harness.provisioning.command import Runner

_GIT_S = 120.0
#: A diff without context, whatever git's configuration and attributes say.
_DIFF = (
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--text"),
    *("-U0", "--inter-hunk-context=0"),
)
_NOT_COPIED = frozenset(
    {".git", ".hg", ".svn", ".tox", ".nox", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache",
     ".ruff_cache", ".pytest_cache", ".hypothesis"}
)  # fmt: skip


class Project:
    """The files to copy: the files that git tracks or would add or, without git, all files.

    `top` is the directory that is copied; tests run in `start`, which is `top` or a directory
    below `top`. Files in `without`, such as reports of an earlier run, do not belong to the
    project.
    """

    def __init__(
        self,
        start: Path,
        scripts: Iterable[Path],
        runner: Runner | None = None,
        *,
        without: Iterable[Path] = (),
    ) -> None:
        self._runner = runner or LocalRunner()
        self.start = start.resolve()
        self._without = {(self.start / path).resolve() for path in without}
        found = self._git("rev-parse", "--show-toplevel")
        self.has_git = found is not None
        self.top = self.start if found is None else Path(found.strip()).resolve()
        self.scripts = [self._script(script) for script in scripts]

    def _script(self, script: Path) -> Path:
        """Return a script's path below `top`."""
        path = (self.start / script).resolve()
        if not path.is_file():
            raise BadInputError("There is no such script.", source=str(script))
        if not path.is_relative_to(self.top):
            raise BadInputError(
                f"The script is outside of the project '{self.top}'; run the command in the directory "
                "from which the script's tests run.",
                source=str(script),
            )
        return path.relative_to(self.top)

    def _git(self, *words: str) -> str | None:
        result = self._runner.run(["git", "-C", str(self.start), *words], timeout_s=_GIT_S)
        return result.stdout if result.ok else None

    def files(self) -> list[Path]:
        """Return the sorted paths of the project's files, relative to `top`."""
        listed = None
        if self.has_git:
            listed = self._git(
                "ls-files",
                "-z",
                "--full-name",
                "--cached",
                "--others",
                "--exclude-standard",
                str(self.top),
            )
        if listed is None:
            found = set(self._walk(self.top))
        else:
            found = set()
            for name in filter(None, listed.split("\0")):
                path = self.top / name
                # git lists a submodule or a nested repository as a folder
                found |= (
                    set(self._walk(path)) if path.is_dir() and not path.is_symlink() else {path}
                )
        found -= self._without
        found |= {self.top / script for script in self.scripts}
        return sorted(p.relative_to(self.top) for p in found if p.is_symlink() or p.is_file())

    def _walk(self, folder: Path) -> Iterator[Path]:
        for path, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if name not in _NOT_COPIED]
            yield from (Path(path) / name for name in names)
            yield from (Path(path) / name for name in folders if (Path(path) / name).is_symlink())

    def copy(self, files: Iterable[Path], to: Path) -> Path:
        """Copy the files; return the directory in the copy in which the tests run."""
        for file in files:
            target = to / file
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy2(self.top / file, target, follow_symlinks=False)
            except OSError as error:
                raise HarnessError(
                    f"'{self.top / file}' can't be copied to '{target}': {error.strerror}. Defects are planted "
                    "in copies of the project; set TMPDIR to a folder with enough space."
                ) from error
        start = to / self.start.relative_to(self.top)
        start.mkdir(parents=True, exist_ok=True)
        return start

    def digests(self, files: Iterable[Path]) -> dict[str, str]:
        """Return a digest of each file, by its path below `top`."""
        return {str(file): self._digest(self.top / file) for file in files}

    def _digest(self, file: Path) -> str:
        if file.is_symlink():
            return f"link to {file.readlink()}"
        mode = f"{file.stat().st_mode:o} ".encode()
        return hashlib.sha256(mode + file.read_bytes()).hexdigest()

    def changed_lines(self, script: Path, revision: str) -> set[int]:
        """Return the lines of a script that differ from a git revision, or all lines of a new file.

        Raises BadInputError outside of a git working tree, without git, and for an unknown
        revision.
        """
        if not self.has_git:
            raise BadInputError(f"'{self.start}' is not a git working tree.", source="--since")
        if self._git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") is None:
            raise BadInputError(f"There is no revision '{revision}'.", source="--since")
        path = str(self.top / script)
        if self._git("cat-file", "-e", f"{revision}:{script.as_posix()}") is None:
            return set(range(1, (self.top / script).read_bytes().count(b"\n") + 2))
        diff = self._git(*_DIFF, revision, "--", path)
        if diff is None:
            raise HarnessError(f"git could not compare '{script}' with '{revision}'.")
        return parse_changed_lines(diff)


def parse_changed_lines(diff: str) -> set[int]:
    """Return the numbers of lines that a diff without context adds, and of lines next to removed lines."""
    lines: set[int] = set()
    for line in diff.splitlines():
        if line.startswith("@@ "):
            added = line.split(" ")[2].removeprefix("+")
            first, _, count = added.partition(",")
            number = int(count or "1")
            lines |= (
                set(range(int(first), int(first) + number))
                if number
                else {int(first), int(first) + 1}
            )
    return lines


def digest_of_all(digests: Mapping[str, str], without: Iterable[str]) -> str:
    """Return one digest of all files in `digests` except the files in `without`."""
    left_out = set(without)
    lines = [
        f"{name}\0{digest}\n" for name, digest in sorted(digests.items()) if name not in left_out
    ]
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
