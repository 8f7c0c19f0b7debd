"""The base class of stateful fakes.

The class mocks a fake's commands, and reads and writes the fake's files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.errors import HarnessError
from harness.shell.sandbox.root_files import RootFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from harness.shell.mocks.commands import Answer, Call, MockedCommand

    Handler = Callable[[Call], Answer]


class MockingShell(Protocol):
    """The parts of the `shell` fixture that a fake needs."""

    def mock(
        self, name: str, *, reads_stdin: bool = False, optional: bool = False
    ) -> MockedCommand: ...

    def write(self, path: Path | str, text: str | bytes, mode: int = 0o644) -> None: ...

    def path(self, path: Path | str) -> Path: ...

    @property
    def files(self) -> RootFiles: ...


class Fake(ABC):
    """A fake: one or more commands that share a state."""

    def __init__(self) -> None:
        self._place: Callable[[str], Path] | None = None
        self._root_files: Callable[[], RootFiles] | None = None
        self._write: Callable[[str, str], None] | None = None

    @property
    @abstractmethod
    def commands(self) -> Mapping[str, Handler]:
        """Return a mapping from each command's name to the function that answers the command's calls."""

    def initial_files(self) -> Mapping[str, str]:
        """Return the files that exist before the first command runs, as a mapping from paths to texts."""
        return {}

    def install(self, shell: MockingShell) -> Self:
        """Mock the commands of this fake in a shell, and write its initial files."""
        self._place = shell.path
        self._root_files = lambda: shell.files
        self._write = shell.write
        for path, text in self.initial_files().items():
            shell.write(path, text)
        for name, handler in self.commands.items():
            shell.mock(name, optional=True).answers(effect=handler)
        return self

    def use_root(self, root: Path) -> Self:
        """Use the files below `root`. Call this method for a fake that is not installed in a shell."""
        self._place = lambda path: root / path.lstrip("/")
        self._root_files = lambda: RootFiles(root)
        self._write = self.write_file
        for path, text in self.initial_files().items():
            self.write_file(path, text)
        return self

    def show_file(self, path: str, text: str) -> None:
        """Write a file of the kernel, such as a file below `/proc`.

        Do nothing if neither `install` nor `use_root` was called before.
        """
        if self._write is not None:
            self._write(path, text)

    def answer(self, call: Call) -> Answer:
        """Answer a call of one of the fake's commands."""
        return self.commands[call.name](call)

    def path(self, path: str) -> Path:
        """Return the host's path of a file that the code under test knows as `path`.

        Use the returned path only while no code under test runs. Raises HarnessError if the code
        under test has no throw-away root.
        """
        found = None if self._place is None else self._place(path)
        if found is None or found == Path(path):
            raise self._no_root(path)
        return found

    def files(self, path: str) -> RootFiles:
        """Return the files of the code under test; `path` is the file that an error message names.

        Raises HarnessError if the code under test has no throw-away root.
        """
        found = self._own_files()
        if found is None:
            raise self._no_root(path)
        return found

    def _own_files(self) -> RootFiles | None:
        found = None if self._root_files is None else self._root_files()
        return None if found is None or found.root == Path("/") else found

    def _no_root(self, path: str) -> HarnessError:
        return HarnessError(
            f"The fake {type(self).__name__} uses '{path}', but the code under test has no "
            "throw-away root. Install the fake in a shell that has a throw-away root."
        )

    def read_own_file(self, path: str) -> str | None:
        """Return the text of a file if the code under test or a fake wrote the file, else None.

        The throw-away root shows files of the host too, but for a file of the host the result is
        None.
        """
        files = self._own_files()
        data = None if files is None or _is_on_host(path) else files.read(path)
        return None if data is None else data.decode(errors="surrogateescape")

    def own_entries(self, folder: str) -> list[str]:
        """Return the paths of the files in a folder, without files of the host."""
        files = self._own_files()
        paths = [] if files is None else [f"{folder}/{name}" for name in files.names(folder)]
        return [path for path in paths if not _is_on_host(path)]

    def write_file(self, path: str, text: str) -> None:
        """Write a file; make missing parent folders."""
        self.files(path).write(path, text.encode(errors="surrogateescape"))


def _is_on_host(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # for example, code under test has used a name that is too long
        return False
