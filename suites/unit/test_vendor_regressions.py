"""The regressions of the vendor's provisioner can be planted, and name tests that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.provisioner.yaml_file import read_provisioner
from suites.e2e.vendor_provisioner.regressions import REGRESSIONS, Regression
from suites.e2e.vendor_provisioner.staged import FOLDER

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("regression", REGRESSIONS.values(), ids=REGRESSIONS)
def test_planted_regression_is_in_the_provisioner_copy(
    regression: Regression, tmp_path: Path
) -> None:
    provisioner = read_provisioner(regression.plant(tmp_path))

    (planted,) = (file for file in provisioner.files if file.path.endswith(regression.file))
    assert planted.content != (FOLDER / "halyard" / regression.file).read_bytes()
    assert f"def {regression.caught_by}(" in (FOLDER / "test_nodes.py").read_text()
