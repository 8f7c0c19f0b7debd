"""Every test of this repository has a time limit, so no test waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites import time_limits

SUITES = Path(time_limits.__file__).parent


def test_every_suite_has_a_limit() -> None:
    suites = {
        folder.name
        for folder in SUITES.iterdir()
        if folder.is_dir() and any(folder.rglob("test_*.py"))
    }

    assert suites <= set(time_limits.LIMITS_S)


def test_test_has_the_limit_of_its_suite(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("timeout").args == (60,)


@pytest.mark.timeout(50)
def test_timeout_marker_of_a_test_overrides_the_suite_timeout(
    request: pytest.FixtureRequest,
) -> None:
    assert request.node.get_closest_marker("timeout").args == (50,)
