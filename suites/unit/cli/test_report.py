"""The exit codes and the output of `harness report merge`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli import main, report
from harness.merging.merge import SUMMARY


@pytest.fixture
def asked() -> list[object]:
    """Return a list to which each merge adds its arguments."""
    return []


@pytest.fixture
def merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[object]) -> list[object]:
    """Fake `merge`; each merge removes and returns the last element of the list that a test fills."""
    results: list[object] = []

    def merge(folders: list[Path], to: Path, *, is_partial: bool, root: Path) -> object:
        asked.append((folders, is_partial, root))
        to.mkdir()
        (to / SUMMARY).write_text("the summary\n")
        return results.pop()

    monkeypatch.setattr(report, "merge", merge)
    monkeypatch.chdir(tmp_path)
    return results


def test_exit_code_of_an_incomplete_merge_is_2_even_if_tests_failed(merged: list[object]) -> None:
    for number, (failed, problems, bad_ends, code) in enumerate(
        ((0, 0, 0, 0), (2, 0, 0, 1), (2, 1, 0, 2), (0, 0, 1, 2), (0, 1, 0, 2))
    ):
        merged.append(
            SimpleNamespace(failed=failed, problems=["x"] * problems, bad_ends=["x"] * bad_ends)
        )

        assert main(["report", "merge", "one", "two", f"--to=to-{number}"]) == code, number


def test_summary_of_the_merged_reports_is_printed(
    merged: list[object], asked: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    merged.append(SimpleNamespace(failed=0, problems=[], bad_ends=[]))

    assert main(["report", "merge", "one", "--to=to", "--partial"]) == 0

    assert capsys.readouterr().out == "the summary\n"
    assert asked == [([Path("one")], True, Path.cwd())]
