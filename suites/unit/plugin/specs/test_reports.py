"""Passed examples wait in a worker, and the controller reports each of them once and in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.plugin.specs.reports import (
    ReportBatch,
    passed_report,
    pytest_runtest_logreport,
)

if TYPE_CHECKING:
    import pytest

PLACE = ("a_spec.sh", 1, "x")


def a_batch(*starts: float) -> ReportBatch:
    batch = ReportBatch()
    for number, start in enumerate(starts):
        item: Any = SimpleNamespace(nodeid=f"a_spec.sh::{number}", location=PLACE)
        batch.add(item, start, 0.5)
    return batch


def test_batch_of_reports_is_due_when_it_is_full_or_its_oldest_report_is_old() -> None:
    rows: list[tuple[list[float], bool]] = [
        ([], False),
        ([99.9, 99.95], False),
        ([99.7, 99.95], True),
        ([100.0] * 49, False),
        ([100.0] * 50, True),
    ]
    for starts, is_due in rows:
        assert a_batch(*starts).is_due(100.0) is is_due, starts


def test_controller_reports_each_example_of_a_batch_once() -> None:
    batch = a_batch(1.0, 2.0)
    carrier, next_one = (passed_report(f"a_spec.sh::{name}", PLACE, 3.0, 0.1) for name in "ab")
    batch.attach(carrier)
    batch.attach(next_one)
    told: list[pytest.TestReport] = []

    def tell(report: pytest.TestReport) -> None:
        told.append(report)

    hook = SimpleNamespace(pytest_runtest_logreport=tell)
    node = SimpleNamespace(config=SimpleNamespace(hook=hook))

    # In a worker, a report has no attribute `node`.
    for report in (carrier, next_one):
        pytest_runtest_logreport(report)
    assert told == []
    for report in (carrier, carrier, next_one):
        vars(report)["node"] = node
        pytest_runtest_logreport(report)

    assert [(each.nodeid, each.start, each.stop) for each in told] == [
        ("a_spec.sh::0", 1.0, 1.5),
        ("a_spec.sh::1", 2.0, 2.5),
    ]
    assert all(vars(each)["node"] is node and each.passed for each in told)
