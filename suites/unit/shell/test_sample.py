"""The sample project, as CI would run it; its specs are collected here one by one as well."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites.unit.shell.running import SpecProject

_SAMPLE = Path(__file__).with_name("sample")


def _verdicts(project: SpecProject, *options: str) -> dict[str, str]:
    report = project.root / "junit.xml"
    result = project.run(*options, f"--junitxml={report}")
    assert result.ok, result.render()
    return {
        f"{case.get('classname')} {case.get('name')}": next(
            (child.tag for child in case), "passed"
        )
        for case in ET.parse(report).iter("testcase")  # noqa: S314 - pytest wrote it
    }


def test_two_workers_in_virtual_time_reach_the_verdicts_of_one_in_real_time(
    project: SpecProject,
) -> None:
    shutil.copytree(_SAMPLE, project.root, dirs_exist_ok=True)

    one = _verdicts(project)

    assert len(one) > 100
    assert _verdicts(project, "-n", "2", "--shell-time=virtual") == one
