"""Markers, and what becomes of a test whose requirements this host does not meet."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.settings import Settings

MARKERS = (
    "real_driver: needs an image with NVIDIA's own driver",
    "slow: takes minutes",
)


def add_markers(config: pytest.Config) -> None:
    """Declare the markers, so that a mistyped one is an error."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@contextlib.contextmanager
def requirements(settings: Settings) -> Iterator[None]:
    """Skip the test with the reason where the host lacks something; under CI let it fail.

    A skipped suite looks like a passed one, and nobody reads CI's skips.
    """
    try:
        yield
    except RequirementError as error:
        if settings.ci:
            raise
        pytest.skip(str(error))
