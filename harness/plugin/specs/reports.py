"""Sends the reports of passed examples to the xdist controller in batches."""

from __future__ import annotations

import pytest

_CARRIED = "shell_examples_passed_before"
_BATCH_SIZE = 50
_BATCH_WAIT_S = 0.25


def passed_report(
    nodeid: str, location: tuple[str, int | None, str], start: float, duration_s: float
) -> pytest.TestReport:
    """Return the report of an example that passed without output and without set-up and teardown phases."""
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
    """The passed examples of an xdist worker that wait to be sent to the controller in a batch.

    Sending a message to the controller takes longer than an example, so passed examples are sent as
    a batch. A batch that is full, or has waited for a quarter of a second, is sent with the report
    of the next example. A batch of any size is sent with an example that fails or has output, and
    with the last example of the file.
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
    """In the controller, report the passed examples that a worker has attached to `report`."""
    node = getattr(report, "node", None)
    if node is None:
        return
    hook = node.config.hook
    for nodeid, location, start, duration_s in vars(report).pop(_CARRIED, ()):
        passed = passed_report(nodeid, tuple(location), start, duration_s)
        vars(passed)["node"] = node
        hook.pytest_runtest_logreport(report=passed)
