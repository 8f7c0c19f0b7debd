"""The zipapp of provisioning runs with the standard library alone."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from harness.payload import build_payload, write_payload
from harness.provisioning.command import LocalRunner
from harness.provisioning.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path


def test_provisioning_zipapp_runs_with_only_the_standard_library(tmp_path: Path) -> None:
    path = write_payload(build_payload(), tmp_path)

    result = LocalRunner().run([sys.executable, "-I", "-S", str(path), "--help"], timeout_s=30)

    assert (result.exit_code, result.stderr) == (0, "")
    assert "usage:" in result.stdout


@pytest.mark.parametrize("streams", [">/dev/full 2>&1", ">&-", "2>&-", ">&- 2>&-"])
def test_run_with_closed_or_full_output_streams_keeps_its_exit_code(
    tmp_path: Path, streams: str
) -> None:
    path = write_payload(build_payload(), tmp_path)
    run = shlex.join([sys.executable, "-I", "-S", str(path), "boot", "--config", "/missing"])
    node, outcome = tmp_path / "node", tmp_path / "outcome.json"
    node.mkdir()

    result = LocalRunner().run(
        ["sh", "-c", f"{run} --root {node} --outcome {outcome} {streams}"], timeout_s=30
    )

    assert result.exit_code == ExitCode.INVALID_CONFIGURATION
    assert json.loads(outcome.read_text())["exit_code"] == ExitCode.INVALID_CONFIGURATION
