"""A fixture that accepts an outdated mirror of Debian's development release."""

from __future__ import annotations

import pytest

from harness.debian_packages import SNAPSHOT_VARIABLE


@pytest.fixture
def lagging_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept package lists past their validity date, since a test does not need the newest packages."""
    monkeypatch.setenv(SNAPSHOT_VARIABLE, "http://deb.debian.org/debian")
