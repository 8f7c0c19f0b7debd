"""Packages of Debian's development release for tests, of whatever day the mirror has them."""

from __future__ import annotations

import pytest

from harness.debian_packages import SNAPSHOT_VARIABLE


@pytest.fixture
def lagging_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take packages also where the mirror's list is past its date: a test needs no newest ones."""
    monkeypatch.setenv(SNAPSHOT_VARIABLE, "http://deb.debian.org/debian")
