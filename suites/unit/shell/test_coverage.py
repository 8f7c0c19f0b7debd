"""Lines of shell code that ran are recorded, also over workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.shell.coverage import code_lines, parse_trace, render_lcov
from suites.unit.shell.samples import SCRIPT

if TYPE_CHECKING:
    from pathlib import Path


def test_only_lines_that_bash_traces_are_code() -> None:
    assert code_lines(SCRIPT) == {4, 5, 7, 9}


def test_trace_of_other_files_is_left_out(tmp_path: Path) -> None:
    trace = "+hx:lib/a.sh:3:echo x\n++hx:/usr/lib/b.sh:4:echo y\nnoise\n"

    assert parse_trace(trace, tmp_path, [tmp_path / "lib"]) == {
        str((tmp_path / "lib/a.sh").resolve()): {3}
    }


def test_lcov_names_lines_that_did_not_run(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("echo a\necho b\n")

    assert render_lcov({str(path): {2}}).splitlines()[1:5] == ["DA:1,0", "DA:2,1", "LF:2", "LH:1"]
