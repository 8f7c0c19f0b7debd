"""The files shown in the migration guide work as it says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from suites.unit.shell.running import REPOSITORY, outcomes

if TYPE_CHECKING:
    from suites.unit.shell.running import SpecProject

_FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_files_of_the_guide_pass(project: SpecProject) -> None:
    guide = (REPOSITORY / "docs" / "migrating-from-shellspec.md").read_text()
    project.write("conftest.py", "from fixtures.shell import shell, warm_shells\n")
    for name, text in _FILE.findall(guide):
        project.write(name, text)

    result = project.run()

    assert set(outcomes(result).values()) == {"passed"}, result.render()
    assert len(outcomes(result)) == 4
