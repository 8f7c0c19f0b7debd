"""Files that an operation leaves on purpose are not a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.endurance.operations import pytest_runs

if TYPE_CHECKING:
    from pathlib import Path


def test_reports_of_a_killed_run_are_removed_when_its_results_are_collected(
    tmp_path: Path,
) -> None:
    for operation in pytest_runs(tmp_path).values():
        report = operation.cwd / "reports/reports/start-1/allure/one-result.json"
        report.parent.mkdir(parents=True)
        report.touch()

        operation.collect()

        assert not report.exists()
