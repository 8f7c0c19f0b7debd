"""A project for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.unit.provisioner.builders import Project, a_project

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return a_project(tmp_path)
