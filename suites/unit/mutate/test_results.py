"""Results are kept by content, and what was torn by a kill is passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.mutate.results import Outcome, Reach, Results

if TYPE_CHECKING:
    from pathlib import Path


def test_kept_results_are_there_in_the_next_run(tmp_path: Path) -> None:
    results = Results(tmp_path, "s")
    results.keep_reach("r", Reach(lines={"a.sh": [1, 2]}, read=[], cpu_s=0.1, wall_s=0.2))
    results.keep_passed("m", {"t1": "d1"})
    results.keep_noticed("n", Outcome.TIMED_OUT, "t1", "d1")

    again = Results(tmp_path, "s")

    reach = again.reach_of("r")
    assert reach is not None
    assert reach.lines == {"a.sh": [1, 2]}
    assert again.untried("m", {"t1": "d1", "t2": "d2"}) == ["t2"]
    assert again.noticed("n", {"t1": "d1"}) == (Outcome.TIMED_OUT, "t1")


def test_torn_line_is_ignored(tmp_path: Path) -> None:
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
