"""The files of a shard: what it ran, how often it was started, how long its tests took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.sharding.durations import read_durations, write_durations
from harness.sharding.manifest import MANIFEST, begin, read_manifest, starts_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "content", ['{"a.py::x": 1.5, "a.py::y": 0}', '[["a.py::x", 1.5], ["a.py::y", 0.0]]']
)
def test_both_forms_of_pytest_split_are_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "durations").write_text(content)

    assert read_durations(tmp_path / "durations") == {"a.py::x": 1.5, "a.py::y": 0.0}


def test_durations_are_read_back_and_a_missing_file_has_none(tmp_path: Path) -> None:
    write_durations(tmp_path / "durations", {"a.py::x": 1.25})

    assert read_durations(tmp_path / "durations") == {"a.py::x": 1.25}
    assert read_durations(tmp_path / "other") == {}


@pytest.mark.parametrize(
    "content", ["{", "3", '{"a": "long"}', '{"a": -1}', '["a"]', '{"a": NaN}']
)
def test_other_content_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "durations").write_text(content)

    with pytest.raises(BadInputError, match="durations"):
        read_durations(tmp_path / "durations")


def test_shard_that_was_killed_is_reported_with_its_starts(tmp_path: Path) -> None:
    assert begin(tmp_path) == (1, tmp_path / "start-1")
    assert begin(tmp_path) == (2, tmp_path / "start-2")

    with pytest.raises(BadInputError, match=r"started 2 times, but wrote no 'shard\.json'"):
        read_manifest(tmp_path)


def test_starts_are_counted_beyond_nine(tmp_path: Path) -> None:
    """By name, the tenth comes before the second."""
    for name in ("start-2", "start-9", "start-10", "start-x", "start-1234567"):
        (tmp_path / name).mkdir()

    assert begin(tmp_path) == (11, tmp_path / "start-11")
    assert starts_of(tmp_path) == 11

    (tmp_path / MANIFEST).write_text("{}")
    assert begin(tmp_path) == (1, tmp_path / "start-1")
    assert [path.name for path in tmp_path.iterdir()] == ["start-1"]


def test_folder_without_reports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"give folders that `pytest --report-dir` wrote"):
        read_manifest(tmp_path)


def test_malformed_record_is_refused_by_its_key(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"number": "x"}')

    with pytest.raises(BadInputError, match=r"shard\.json: key 'number'"):
        read_manifest(tmp_path)


def test_run_that_came_to_its_end_is_replaced(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / MANIFEST).write_text("{}")

    assert begin(tmp_path) == (1, tmp_path / "start-1")
    assert not (tmp_path / MANIFEST).exists()
