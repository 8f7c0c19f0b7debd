"""A fixture by which tests of the plugin run another pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.host.plugin.inner_pytest import prepare

if TYPE_CHECKING:
    from suites.host.plugin.inner_pytest import Inner


@pytest.fixture
def inner(
    pytester: pytest.Pytester, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> Inner:
    return prepare(pytester, pytestconfig, monkeypatch)
