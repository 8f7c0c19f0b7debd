"""The defects of the example provisioner can be planted, and name tests that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.provisioner.yaml_file import read_provisioner
from suites.e2e.shell_provisioner.defects import DEFECTS, FOLDER, SCRIPT, Defect

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_planted_defect_is_in_the_provisioner_copy(defect: Defect, tmp_path: Path) -> None:
    provisioner = read_provisioner(defect.plant(tmp_path / "copy"))

    (script,) = provisioner.files
    assert defect.after in script.content.decode()
    assert script.content != (FOLDER / SCRIPT).read_bytes()
    assert f"def {defect.caught_by}(" in (FOLDER / "test_nodes.py").read_text()


@pytest.mark.parametrize("text", ["no such text", "log "])
def test_defect_whose_text_does_not_occur_exactly_once_is_refused(
    text: str, tmp_path: Path
) -> None:
    defect = Defect(name="x", before=text, after="", caught_by="test_x")

    with pytest.raises(ValueError, match=r"'x' can't be planted: its text occurs \d+ times"):
        defect.plant(tmp_path / "copy")
