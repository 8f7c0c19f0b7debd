"""The files of a shard: which tests ran, how often the shard started, how long its tests took."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import BadInputError
from harness.sharding.durations import read_durations, write_durations
from harness.sharding.manifest import (
    MANIFEST,
    ShardManifest,
    begin,
    digest_of,
    read_manifest,
    starts_of,
    write_manifest,
)
from harness.sharding.report_file import read_report


@pytest.mark.parametrize(
    "content", ['{"a.py::x": 1.5, "a.py::y": 0}', '[["a.py::x", 1.5], ["a.py::y", 0.0]]']
)
def test_both_duration_file_formats_of_pytest_split_are_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "durations").write_text(content)

    assert read_durations(tmp_path / "durations") == {"a.py::x": 1.5, "a.py::y": 0.0}


def test_durations_are_written_sorted_and_rounded(
    tmp_path: Path,
) -> None:
    path = tmp_path / "durations"
    assert read_durations(path) == {}

    write_durations(path, {})
    with path.open() as earlier:
        write_durations(path, {"b.py::y": 2.0, "a.py::x": 1.23456})
        assert earlier.read() == "{}\n", (
            "A process that has opened the earlier file reads all of it."
        )

    assert path.read_text() == '{\n    "a.py::x": 1.2346,\n    "b.py::y": 2.0\n}\n'
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    ["{", "3", '{"a": "long"}', '{"a": -1}', '{"a": NaN}', '{"a": "nan"}', '{"a": "inf"}'],
)
def test_error_for_a_file_without_durations_mentions_the_file(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "durations").write_text(content)

    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path / "durations", tmp_path, tmp_path / "pipe"):
        with pytest.raises(BadInputError, match=path.name):
            read_durations(path)


def test_two_simultaneous_starts_of_a_finished_shard_keep_both_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other start begins as soon as this start has removed the record of the finished run."""
    begin(tmp_path)
    (tmp_path / MANIFEST).write_text("{}")
    remove = Path.unlink
    others: list[Path] = []

    def unlink(path: Path) -> None:
        remove(path)
        monkeypatch.undo()
        others.append(begin(tmp_path)[1])
        remove(path)

    monkeypatch.setattr(Path, "unlink", unlink)

    _, own = begin(tmp_path)

    assert own.is_dir()
    assert [each.is_dir() for each in others] == [True]


def test_error_for_a_killed_shard_mentions_the_number_of_starts(tmp_path: Path) -> None:
    assert begin(tmp_path) == (1, tmp_path / "start-1")
    assert begin(tmp_path) == (2, tmp_path / "start-2")
    assert (tmp_path / "start-2").stat().st_mode & 0o777 == 0o700

    with pytest.raises(BadInputError, match=r"started 2 times, but wrote no 'shard\.json'"):
        read_manifest(tmp_path)


def test_start_folders_of_a_shard_are_counted_numerically(tmp_path: Path) -> None:
    """Sorted by name, the tenth start would come before the second."""
    for name in ("start-2", "start-9", "start-10", "start-x", "start-1234567"):
        (tmp_path / name).mkdir()

    assert begin(tmp_path) == (11, tmp_path / "start-11")
    assert starts_of(tmp_path) == 11

    (tmp_path / MANIFEST).write_text("{}")
    assert begin(tmp_path) == (1, tmp_path / "start-1")
    assert [path.name for path in tmp_path.iterdir()] == ["start-1"]


def test_digest_depends_on_the_set_of_tests_but_not_on_their_order() -> None:
    assert digest_of(["a", "b"]) == digest_of(["b", "a"]) != digest_of(["ab"])
    assert digest_of(["a[\udcff]"]) != digest_of(["a[\udcfe]"]), (
        "A test id may contain bytes that are not UTF-8."
    )


def test_each_of_several_simultaneous_starts_of_a_shard_gets_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "start-1").mkdir()
    monkeypatch.setattr("harness.sharding.manifest.starts_of", lambda _: 0)

    assert begin(tmp_path) == (2, tmp_path / "start-2")


def test_record_of_a_shard_is_written_to_one_file_and_read_back(tmp_path: Path) -> None:
    written = ShardManifest(
        number=2, count=3, collection_sha256="d", collected=5, tests=("b", "a"), ran=("b",), start=1,
        host="h", root="/r", started="2026-11-27", seconds=1.5, first_test_s=None, exit_status=1,
    )  # fmt: skip

    write_manifest(tmp_path, replace(written, exit_status=2))
    with (tmp_path / MANIFEST).open() as earlier:
        write_manifest(tmp_path, written)
        assert json.load(earlier)["exit_status"] == 2, (
            "A process that has opened the earlier file reads it."
        )

    assert read_manifest(tmp_path) == written
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_error_for_an_unreadable_report_mentions_the_reason(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")

    for name, why in (("link", "it is a link"), ("absent", "No such file or directory")):
        with pytest.raises(BadInputError, match=rf"{name}: The file can't be read: {why}\."):
            read_report(tmp_path / name)


def test_folder_without_reports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"give folders that `pytest --report-dir` wrote"):
        read_manifest(tmp_path)


def test_error_for_a_malformed_record_mentions_the_key(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"number": "x"}')

    with pytest.raises(BadInputError, match=r"shard\.json: key 'number'"):
        read_manifest(tmp_path)


def test_error_for_a_record_of_another_version_names_the_version(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"number": "x", "schema": 2}')

    with pytest.raises(
        BadInputError, match=r"json: key 'schema': The file has the format 2, but .* reads 1;"
    ):
        read_manifest(tmp_path)
