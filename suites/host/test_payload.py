"""The zipapp of provisioning runs with the standard library alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.payload import build_payload, write_payload
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path


def test_packed_provisioning_runs_by_itself(tmp_path: Path) -> None:
    path = write_payload(build_payload(), tmp_path)

    result = LocalRunner().run([sys.executable, "-I", "-S", str(path), "--help"], timeout_s=30)

    assert (result.exit_code, result.stderr) == (0, "")
    assert "usage:" in result.stdout
