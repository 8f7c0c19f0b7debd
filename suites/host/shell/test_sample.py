"""Runs the sample project in virtual time, as CI would; the host suite also runs it in real time."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject

_SAMPLE = Path(__file__).with_name("sample")


def test_sample_project_passes_with_two_workers_in_virtual_time(project: SpecProject) -> None:
    shutil.copytree(_SAMPLE, project.root, dirs_exist_ok=True)

    result = project.run("-n", "2", "--shell-time=virtual", "-q")

    examples = sum(
        len(re.findall(r"^ *(?:It|Example) ", spec.read_text(), re.MULTILINE))
        for spec in _SAMPLE.rglob("*_spec.sh")
    )
    assert result.ok, result.render()
    assert [int(count) for count in re.findall(r"(\d+) passed", result.stdout)] >= [examples]
