"""Carries the reports of passed examples to the xdist controller in batches."""

from __future__ import annotations

import pytest

_CARRIED = "shell_examples_passed_before"
_BATCH_SIZE = 50
_BATCH_WAIT_S = 0.25


def passed_report(
    nodeid: str, location: tuple[str, int | None, str], start: float, duration_s: float
) -> pytest.TestReport:
    """Return the one report of an example that passed and has no output."""
    return pytest.TestReport(
        nodeid=nodeid,
        location=location,
        keywords={},
        outcome="passed",
        longrepr=None,
        when="call",
        sections=(),
        duration=duration_s,
        start=start,
        stop=start + duration_s,
    )


class ReportBatch:
    """In an xdist worker: passed examples that wait to go to the controller together.

    A message to the controller costs both sides more than an example does. A batch is sent when it
    is full or has waited a quarter of a second, with the next example that did not simply pass,
    and at the latest with the last example of its file.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[str, tuple[str, int | None, str], float, float]] = []

    def is_due(self, now: float) -> bool:
        return len(self._waiting) >= _BATCH_SIZE or (
            bool(self._waiting) and now - self._waiting[0][2] > _BATCH_WAIT_S
        )

    def add(self, item: pytest.Item, start: float, duration_s: float) -> None:
        self._waiting.append((item.nodeid, item.location, start, duration_s))

    def attach(self, report: pytest.TestReport) -> None:
        if self._waiting:
            setattr(report, _CARRIED, self._waiting)
            self._waiting = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the controller, report the examples that came with this one."""
    carried = report.__dict__.pop(_CARRIED, None)
    node = getattr(report, "node", None)
    if carried is None or node is None:
        if carried is not None:
            setattr(report, _CARRIED, carried)
        return
    hook = node.config.hook
    for nodeid, location, start, duration_s in carried:
        passed = passed_report(nodeid, tuple(location), start, duration_s)
        vars(passed)["node"] = node
        hook.pytest_runtest_logreport(report=passed)
