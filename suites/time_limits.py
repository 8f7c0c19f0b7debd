"""A time limit for every test of this repository, by the folder of its suite.

A test that exceeds its limit fails, and the run continues. An example of a `*_spec.sh` file has a
separate limit, `--shell-timeout`. `--timeout-multiplier` above 1 multiplies the limits, like the
waits for guests.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from harness.machine.guest_time import MOST_TIMES
from harness.plugin import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Generator
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
#: Tests that take many minutes by themselves, in suites of machines.
LONG_MARKS = ("nightly", "real_driver")
LONG_S = 5400
_QUICK_SUITES = ("unit", "host", "docs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a timeout marker to each module and to each long test without an own marker.

    With `-p no:timeout`, tests have no limits.
    """
    if not config.pluginmanager.hasplugin("timeout"):
        return
    suites = config.rootpath / "suites"
    multiplier = max(1.0, config.stash[SETTINGS].timeout_multiplier)
    of_files = {item.path: item for item in items if item.path.is_relative_to(suites)}
    limits: dict[Path, pytest.Mark] = {}
    for path, item in of_files.items():
        suite = path.relative_to(suites).parts[0]
        limit = pytest.mark.timeout(LIMITS_S[suite] * multiplier)
        module = item.getparent(pytest.Module)
        if module is not None and module.get_closest_marker("timeout") is None:
            module.add_marker(limit)
            if suite not in _QUICK_SUITES:
                limits[path] = limit.mark
    for item in items:
        if (
            item.path in limits
            and any(map(item.get_closest_marker, LONG_MARKS))
            and item.get_closest_marker("timeout") is limits[item.path]
        ):
            item.add_marker(pytest.mark.timeout(LONG_S * multiplier))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Multiply the limit of a test on machines by the number of tasks for each of the host's processors.

    pytest-timeout counts the host's time, while deadlines of machines count the guest's time. The
    factor is at most the factor by which progress extends such a deadline.
    """
    suites = item.config.rootpath / "suites"
    limit = item.get_closest_marker("timeout")
    if (
        limit is not None
        and item.path.is_relative_to(suites)
        and item.path.relative_to(suites).parts[0] not in _QUICK_SUITES
    ):
        tasks = os.getloadavg()[0] / len(os.sched_getaffinity(0))
        item.add_marker(
            pytest.mark.timeout(limit.args[0] * min(MOST_TIMES, max(1.0, tasks))), append=False
        )
    return (yield)
