"""Fixtures that the tests of shell code share."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from suites.host.shell.running import SpecProject, WarmPytest, warm_pytest_process

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def warm_pytest() -> Iterator[WarmPytest]:
    """Start a process that runs pytest for all tests of this worker."""
    with warm_pytest_process() as warm:
        yield warm


@pytest.fixture
def project(tmp_path: Path, warm_pytest: WarmPytest) -> SpecProject:
    """Return an empty spec project."""
    (tmp_path / ".shellspec").touch()
    return SpecProject(tmp_path, warm_pytest)


@pytest.fixture
def host_socket() -> Iterator[Path]:
    """Yield a short path of a listening socket on the host, like a daemon's socket."""
    with (
        tempfile.TemporaryDirectory(prefix="hs.") as folder,
        contextlib.closing(socket.socket(socket.AF_UNIX)) as listening,
    ):
        path = Path(folder) / "s"
        listening.bind(str(path))
        listening.listen()
        yield path
