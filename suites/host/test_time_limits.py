"""Each test of this repository has a time limit, so a test that hangs ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.provisioning.command import LocalRunner
from suites import time_limits

SUITES = Path(time_limits.__file__).parent


def test_limit_ends_a_test_that_hangs(tmp_path: Path) -> None:
    """The hanging test runs in a folder with this repository's layout, and a limit of one second."""
    unit = tmp_path / "suites" / "unit"
    unit.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(
        "from suites import time_limits\n"
        "time_limits.LIMITS_S = {'unit': 1}\n"
        "pytest_plugins = ['suites.time_limits']\n"
    )
    (unit / "test_it.py").write_text(
        "import threading\n"
        "def test_hangs(): threading.Event().wait(30)\n"
        "def test_is_quick(): pass\n"
    )

    result = LocalRunner().run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:randomly",
            "--rootdir",
            str(tmp_path),
            str(unit),
        ],
        timeout_s=50,
        env={"PYTHONPATH": str(SUITES.parent), "PATH": os.environ.get("PATH", os.defpath)},
    )

    assert "Timeout (>1.0s)" in result.stdout, result.render()
    assert "1 failed, 1 passed" in result.stdout
