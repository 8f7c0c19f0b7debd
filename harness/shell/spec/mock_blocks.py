"""Writes each `Mock` block of a spec to a separate directory, which is prepended to PATH.

A mock whose name is a path is written only to the file `.body`, which the shell later copies to
this path in the throw-away root.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.shell.shells import SpecShell
    from harness.shell.spec.spec_file import MockScript, SpecFile

RUNTIME = Path(__file__).with_name("mock_runtime.sh")
POSIX_RUNTIME = Path(__file__).with_name("posix") / "mock.sh"


def write_mocks(spec: SpecFile, folder: Path, shell: SpecShell) -> None:
    """Write each mock of `spec` below `folder`: a file `.body`, and a hard link to `.body` with the mock's name.

    In the throw-away root, a write to the hard link does not change `.body`, because overlayfs
    first copies the hard link to a separate file.
    """
    for mock in spec.mocks:
        directory = folder / str(mock.number)
        directory.mkdir(parents=True)
        body = directory / ".body"
        body.write_text(_script(mock, shell), errors="surrogateescape")
        body.chmod(0o755)
        if mock.name is not None and "/" not in mock.name:
            (directory / mock.name).hardlink_to(body)


def write_writable_folders(spec: SpecFile, layer: Path, cwd: Path) -> Path | None:
    """Make, in `layer`, the directories of mocks whose names are paths.

    An ordinary user can then write to these directories.

    In an ordinary user's throw-away root, a directory such as `/usr/bin` is writable only if the
    directory also exists in `layer`. Return the layer, or None if the layer has no directories.
    """
    paths = [cwd / mock.name for mock in spec.mocks if mock.name is not None and "/" in mock.name]
    for path in paths:
        folder = next(above for above in path.parents if above.is_dir()).resolve()
        if not os.access(folder, os.W_OK):
            for each in (*reversed(folder.parents), folder):
                own = layer / each.relative_to("/")
                own.mkdir(parents=True, exist_ok=True)
                own.chmod(each.stat().st_mode & 0o7777 | 0o700)
    return layer if layer.is_dir() else None


def _script(mock: MockScript, shell: SpecShell) -> str:
    runtime = POSIX_RUNTIME if shell.is_posix else RUNTIME
    return f"{shell.shebang}\n. {runtime}\n{mock.body}"
