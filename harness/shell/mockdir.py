"""Puts the `Mock` blocks of a spec on disk, one directory each, to be prepended to PATH."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.shell.specfile import MockScript, SpecFile

RUNTIME = Path(__file__).with_name("mock_runtime.sh")


def write_mocks(spec: SpecFile, folder: Path, shell: str) -> None:
    """Write each mock of `spec` below `folder`, executable; with no name, as `.body`."""
    for mock in spec.mocks:
        directory = folder / str(mock.number)
        directory.mkdir(parents=True)
        path = directory / (mock.name or ".body")
        path.write_text(_script(mock, shell), errors="surrogateescape")
        path.chmod(0o755)


def _script(mock: MockScript, shell: str) -> str:
    interpreter = shell if shell.startswith("/") else f"/usr/bin/env {shell}"
    return f"#!{interpreter}\n. {RUNTIME}\n{mock.body}"
