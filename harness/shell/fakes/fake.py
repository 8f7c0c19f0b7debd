"""What all stateful fakes share: commands, a state behind them, and the files that they change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from harness.shell.mocks.commands import Answer, Call, MockedCommand

    Handler = Callable[[Call], Answer]


class MockingShell(Protocol):
    """What a fake needs of the `shell` fixture."""

    def mock(
        self, name: str, *, reads_stdin: bool = False, optional: bool = False
    ) -> MockedCommand: ...

    def write(self, path: Path | str, text: str | bytes, mode: int = 0o644) -> None: ...

    def path(self, path: Path | str) -> Path: ...


class Fake(ABC):
    """Commands that share a state."""

    def __init__(self) -> None:
        self._place: Callable[[str], Path] | None = None
        self._write: Callable[[str, str], None] | None = None

    @property
    @abstractmethod
    def commands(self) -> Mapping[str, Handler]:
        """Return what answers each command."""

    def initial_files(self) -> Mapping[str, str]:
        """Return the texts of files that are there before the first command, by path."""
        return {}

    def install(self, shell: MockingShell) -> Self:
        """Mock the commands of this fake in a shell, and write the files of its first state."""
        self._place = shell.path
        self._write = shell.write
        for path, text in self.initial_files().items():
            shell.write(path, text)
        for name, handler in self.commands.items():
            shell.mock(name, optional=True).answers(effect=handler)
        return self

    def use_root(self, root: Path) -> Self:
        """Change files below `root`; for a fake that is asked without a shell."""
        self._place = lambda path: root / path.lstrip("/")
        self._write = self.write_file
        for path, text in self.initial_files().items():
            self.write_file(path, text)
        return self

    def show_file(self, path: str, text: str) -> None:
        """Let a file that the kernel shows hold `text`; nothing happens before `install`."""
        if self._write is not None:
            self._write(path, text)

    def answer(self, call: Call) -> Answer:
        """Answer a call of one of the commands."""
        return self.commands[call.name](call)

    def path(self, path: str) -> Path:
        """Return where the file `path` of the code under test lies.

        Raises HarnessError where that would be a file of the host.
        """
        found = self._own_path(path)
        if found is None:
            raise HarnessError(
                f"The fake {type(self).__name__} uses '{path}', but the code under test has no "
                "root of its own. Install the fake in a shell that has the throw-away root."
            )
        return found

    def _own_path(self, path: str) -> Path | None:
        found = None if self._place is None else self._place(path)
        return None if found == Path(path) else found

    def link(self, path: str) -> Path:
        """Return where the symbolic link `path` itself lies, which `path` would follow."""
        folder, _, name = path.rpartition("/")
        return self.path(folder) / name

    def read_own_file(self, path: str) -> str | None:
        """Return the text of a file that the code under test or a fake wrote; else None.

        Files of the host, which show through in the root, are left out.
        """
        found = self._own_path(path)
        if found is None or found.is_symlink() or not found.is_file() or Path(path).exists():
            return None
        return found.read_text()

    def own_entries(self, folder: str) -> list[str]:
        """Return the paths of what a folder holds, without what the host has there."""
        found = self._own_path(folder)
        if found is None or not found.is_dir():
            return []
        paths = [f"{folder}/{entry.name}" for entry in sorted(found.iterdir())]
        return [path for path in paths if not Path(path).exists()]

    def write_file(self, path: str, text: str) -> None:
        """Write a file and the folders above it."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
