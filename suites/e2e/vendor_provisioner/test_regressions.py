"""Each planted regression is caught on a machine, and the short summary names its cause."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner
from suites.e2e.inner import pytest_argv
from suites.e2e.vendor_provisioner.regressions import REGRESSIONS, Regression

if TYPE_CHECKING:
    from harness.api import Lab

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.pin_image(reason="the provisioner is a vendor's own, for one distribution"),
]

_TESTS = Path(__file__).with_name("test_nodes.py")
_COLUMNS = 80
_RUN_S = 900.0


@pytest.mark.parametrize("regression", REGRESSIONS.values(), ids=REGRESSIONS)
def test_summary_names_the_cause(lab: Lab, tmp_path: Path, regression: Regression) -> None:
    declaration = regression.plant(tmp_path / "planted")

    run = LocalRunner().run(
        [
            *pytest_argv(lab, _TESTS),
            *("-k", regression.caught_by),
            # Clones take seconds, and this run has their saved state.
            "--machine-start=clone",
            "--failure-checkpoint=never",
            f"--provisioner={declaration}",
            f"--evidence-dir={tmp_path / 'evidence'}",
        ],
        timeout_s=_RUN_S,
        env={"COLUMNS": str(_COLUMNS)},
    )

    summary = run.stdout.rpartition(" short test summary info ")[2]
    # A line that goes on in the next one begins deeper there.
    said = summary.replace("\n    ", " ")
    assert run.exit_code == pytest.ExitCode.TESTS_FAILED, run.render()
    assert "expectations not met: 1; the harness could not tell: 0" in summary, run.render()
    for cause in regression.causes:
        assert re.search(rf"^  {cause}", said, re.MULTILINE), summary
