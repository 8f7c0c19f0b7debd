"""Each test of this repository has a time limit, so a test that hangs ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.provisioning.command import LocalRunner
from suites import time_limits

SUITES = Path(time_limits.__file__).parent


@pytest.mark.parametrize(
    ("suite", "load", "limit"),
    [
        ("unit", 64.0, "1.0"),
        ("e2e", 0.1, "1.0"),
        ("e2e", 2.5, "2.5"),
        ("e2e", 64.0, "3.0"),
    ],
)
def test_limit_ends_a_test_that_hangs(tmp_path: Path, suite: str, load: float, limit: str) -> None:
    """Only tests on machines get more time on a busy host, up to three times their limit.

    The hanging test runs in a folder with this repository's layout, and a limit of one second.
    """
    folder = tmp_path / "suites" / suite
    folder.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(
        "import os\n"
        "from suites import time_limits\n"
        f"time_limits.LIMITS_S = {{'{suite}': 1}}\n"
        "os.sched_getaffinity = lambda _: {0}\n"
        f"os.getloadavg = lambda: ({load}, 0.0, 0.0)\n"
        "pytest_plugins = ['suites.time_limits']\n"
    )
    (folder / "test_it.py").write_text(
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
            str(folder),
        ],
        timeout_s=50,
        env={"PYTHONPATH": str(SUITES.parent), "PATH": os.environ.get("PATH", os.defpath)},
    )

    assert f"Timeout (>{limit}s)" in result.stdout, result.render()
    assert "1 failed, 1 passed" in result.stdout
