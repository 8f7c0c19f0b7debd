"""Fixtures of the e2e suites alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.settings import APPLICATION
from suites.e2e.inner import OwnCache

if TYPE_CHECKING:
    from pathlib import Path

    from harness.image import Image
    from harness.lab import Lab


@pytest.fixture
def own_cache(lab: Lab, node_image: Image, tmp_path: Path) -> OwnCache:
    assert node_image.disk.exists()
    folder = tmp_path / "cache" / APPLICATION
    folder.mkdir(parents=True)
    (folder / "images").symlink_to(lab.settings.image_store)
    return OwnCache(tmp_path / "cache")
