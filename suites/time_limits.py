"""A time limit for every test of this repository, by the folder of its suite.

A test that waits for something that never comes ends as failed, and the run goes on. An example of a
`*_spec.sh` file has a limit of its own, `--shell-timeout`. With `--timeout-multiplier` above 1 the
limits grow as the waits on guests do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.plugin import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds for a test and its fixtures. Those of a virtual machine may build its image first.
LIMITS_S = {
    "unit": 60,
    "host": 600,
    "docs": 900,
    "e2e": 1800,
    "bench": 1800,
    "node": 600,
    "passthrough": 1800,
}
#: Tests that take many minutes by themselves.
LONG_MARKS = ("nightly", "real_driver")
LONG_S = 5400


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its limit, unless it has one; `-p no:timeout` leaves all unlimited."""
    if not config.pluginmanager.hasplugin("timeout"):
        return
    suites = config.rootpath / "suites"
    multiplier = max(1.0, config.stash[SETTINGS].timeout_multiplier)
    limits_s: dict[Path, int | None] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("timeout") is not None:
            continue
        if item.path not in limits_s:
            limits_s[item.path] = _limit_s(item.path, suites)
        limit_s = limits_s[item.path]
        if limit_s is None:
            continue
        if any(item.get_closest_marker(mark) for mark in LONG_MARKS):
            limit_s = max(limit_s, LONG_S)
        item.add_marker(pytest.mark.timeout(limit_s * multiplier))


def _limit_s(path: Path, suites: Path) -> int | None:
    """Return the limit of the suite that has this file, or None for a file of no suite."""
    return LIMITS_S[path.relative_to(suites).parts[0]] if path.is_relative_to(suites) else None
