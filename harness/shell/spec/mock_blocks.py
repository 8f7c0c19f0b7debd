"""Puts the `Mock` blocks of a spec on disk, one directory each, to be prepended to PATH."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.shell.shells import SpecShell
    from harness.shell.spec.spec_file import MockScript, SpecFile

RUNTIME = Path(__file__).with_name("mock_runtime.sh")
POSIX_RUNTIME = Path(__file__).with_name("posix") / "mock.sh"


def write_mocks(spec: SpecFile, folder: Path, shell: SpecShell) -> None:
    """Write each mock of `spec` below `folder`, executable; with no name, as `.body`."""
    for mock in spec.mocks:
        directory = folder / str(mock.number)
        directory.mkdir(parents=True)
        path = directory / (mock.name or ".body")
        path.write_text(_script(mock, shell), errors="surrogateescape")
        path.chmod(0o755)


def _script(mock: MockScript, shell: SpecShell) -> str:
    runtime = POSIX_RUNTIME if shell.is_posix else RUNTIME
    return f"{shell.shebang}\n. {runtime}\n{mock.body}"
