"""The measured CPU time of a command includes each of its processes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from harness.bench.accounting import run_accounted
from harness.errors import HarnessError

if TYPE_CHECKING:
    from pathlib import Path

_WORK = "sum(range(8_000_000))"


def test_cpu_time_of_an_orphaned_process_is_counted(tmp_path: Path) -> None:
    work = [sys.executable, "-I", "-S", "-c", _WORK]
    waited = run_accounted(work, cwd=tmp_path, timeout_s=60.0)

    orphaned = run_accounted(
        ["sh", "-c", '"$@" & exit 0', "sh", *work], cwd=tmp_path, timeout_s=60.0
    )

    assert orphaned.cpu_s > waited.cpu_s / 2 > 0


def test_failure_of_a_measured_command_is_a_harness_error(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="exit code: 3"):
        run_accounted(["sh", "-c", "exit 3"], cwd=tmp_path, timeout_s=60.0)
