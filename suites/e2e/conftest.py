"""Fixtures of the e2e suites alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.settings import APPLICATION
from suites.e2e.inner import OwnCache
from suites.installed_wheel import installed_wheel  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from harness.image import Image
    from harness.lab import Lab

#: The tests that take longest: one image is made, fetched, booted and baked for all of them.
_LONGEST = Path(__file__).parent / "cloud_images"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records dialogues with real tools."""
    parser.addoption(
        "--record-dialogues",
        action="store_true",
        help="store what the tools of a machine do as the recorded dialogues, and compare nothing",
    )


# After pytest's own order by parameters of wide fixtures, which would undo this one.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no worker is alone with it at the end."""
    items.sort(key=lambda item: _LONGEST not in item.path.parents)


@pytest.fixture
def own_cache(lab: Lab, node_image: Image, tmp_path: Path) -> OwnCache:
    assert node_image.disk.exists()
    folder = tmp_path / "cache" / APPLICATION
    folder.mkdir(parents=True)
    (folder / "images").symlink_to(lab.settings.image_store)
    return OwnCache(tmp_path / "cache")
