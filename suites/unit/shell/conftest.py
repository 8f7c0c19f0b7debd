"""What the tests of the shell tier share."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from suites.unit.shell.running import SpecProject

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def project(tmp_path: Path) -> SpecProject:
    """Give a test an empty spec project."""
    (tmp_path / ".shellspec").touch()
    return SpecProject(tmp_path)


@pytest.fixture
def host_socket() -> Iterator[Path]:
    """Give the path of a socket of the host, as daemons have them; short, as they must be."""
    with (
        tempfile.TemporaryDirectory(prefix="hs.") as folder,
        contextlib.closing(socket.socket(socket.AF_UNIX)) as listening,
    ):
        path = Path(folder) / "s"
        listening.bind(str(path))
        listening.listen()
        yield path
