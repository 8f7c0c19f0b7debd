"""Plants defects in the example provisioner, and checks that its tests on nodes catch each defect."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from harness.provisioning.command import LocalRunner
from suites.e2e.shell_provisioner.defects import DEFECTS, FOLDER

_LIMIT_S = 900.0
_CAUGHT = "expectations not met: 1; the harness could not tell: 0"
_REASON = re.compile(r"^E +(?:harness\.errors\.)?ExpectationError: (.*)$", re.MULTILINE)


def plant_all() -> int:
    """Return 0 if each defect made an expectation of its test fail, else 1."""
    caught = 0
    with tempfile.TemporaryDirectory(prefix="defects-") as folder:
        for number, defect in enumerate(DEFECTS):
            declaration = defect.plant(Path(folder) / str(number))
            result = LocalRunner().run(
                [
                    *(sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider"),
                    *("-p", "no:randomly", f"--provisioner={declaration}"),
                    f"{FOLDER / 'test_nodes.py'}::{defect.caught_by}",
                ],
                timeout_s=_LIMIT_S,
            )
            reason = _REASON.search(result.stdout)
            if result.exit_code == 1 and _CAUGHT in result.stdout and reason is not None:
                caught += 1
                verdict = (
                    f"caught by {defect.caught_by} in {result.duration_s:.0f} s\n    {reason[1]}"
                )
            else:
                verdict = f"NOT CAUGHT by {defect.caught_by}\n{result.render()}"
            print(f"{defect.name}: {verdict}", flush=True)  # noqa: T201
    print(f"{caught} of {len(DEFECTS)} caught", flush=True)  # noqa: T201
    return 0 if caught == len(DEFECTS) else 1
