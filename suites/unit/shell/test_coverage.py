"""Lines of shell code that ran are recorded, also over workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import coverage

from harness.shell.coverage import code_lines, parse_trace, render_lcov

if TYPE_CHECKING:
    from suites.unit.shell.running import SpecProject

_SCRIPT = """\
#!/bin/bash
# a comment
choose() {
  if [ "$1" = left ]; then
    echo left
  else
    echo right
  fi
  cat <<TEXT
not code
TEXT
}
"""


def test_only_lines_that_bash_traces_are_code() -> None:
    assert code_lines(_SCRIPT) == {4, 5, 7, 9}


def test_trace_of_other_files_is_left_out(tmp_path: Path) -> None:
    trace = "+hx:lib/a.sh:3:echo x\n++hx:/usr/lib/b.sh:4:echo y\nnoise\n"

    assert parse_trace(trace, tmp_path, [tmp_path / "lib"]) == {
        str((tmp_path / "lib/a.sh").resolve()): {3}
    }


def test_lcov_names_lines_that_did_not_run(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("echo a\necho b\n")

    assert render_lcov({str(path): {2}}).splitlines()[1:5] == ["DA:1,0", "DA:2,1", "LF:2", "LH:1"]


def test_workers_coverage_is_merged(project: SpecProject) -> None:
    script = project.write("lib/choose.sh", _SCRIPT)
    for side in ("left", "right"):
        project.write(
            f"{side}_spec.sh",
            f"Describe '{side}'\nInclude ./lib/choose.sh\nIt 'chooses {side}'\n"
            f"When call choose {side}\nThe output should include {side}\nEnd\nEnd\n",
        )

    result = project.run(
        "-n", "2", "--shell-cov", f"{project.root}/lib", "--shell-cov-lcov",
        f"{project.root}/lcov.info",
    )  # fmt: skip

    assert result.ok, result.render()
    data = coverage.CoverageData(basename=str(project.root / ".coverage.shell"))
    data.read()
    assert set(data.lines(str(script.resolve())) or []) == {4, 5, 7, 9}
    assert "LH:4" in Path(project.root / "lcov.info").read_text()
