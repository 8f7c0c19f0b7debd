"""What the tests of the shell tier share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.unit.shell.running import SpecProject

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path) -> SpecProject:
    """Give a test an empty spec project."""
    (tmp_path / ".shellspec").touch()
    return SpecProject(tmp_path)
