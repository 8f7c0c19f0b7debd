"""Lines that a killed run left incomplete in the results file are ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.mutate.results import Results

if TYPE_CHECKING:
    from pathlib import Path


def test_incomplete_or_invalid_line_of_a_results_file_is_ignored(tmp_path: Path) -> None:
    results = Results(tmp_path, "s")
    results.keep_passed("m", {"t1": "d"})
    [file] = tmp_path.glob("*.jsonl")
    with file.open("ab") as open_file:
        open_file.write(
            b'{"kind": "passed", "key": "m", "tests": {"t2"\n[]\n{"kind": "noticed"}\n'
        )
    again = Results(tmp_path, "s")
    assert again.untried("m", {"t1": "d", "t2": "d"}) == ["t2"]
    with file.open("ab") as open_file:
        open_file.write(b'{"kind": "passed", "key"')
    again = Results(tmp_path, "s")
    again.keep_passed("m", {"t2": "d"})
    assert Results(tmp_path, "s").untried("m", {"t1": "d", "t2": "d"}) == []
