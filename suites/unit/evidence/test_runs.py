"""The results of each run of a provisioner, after several runs on one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.evidence.runs import Runs
from harness.provisioner import RUNS_FOLDER

if TYPE_CHECKING:
    from pathlib import Path


def some_runs(files: Path, *runs: dict[str, str]) -> Runs:
    """Return runs that are numbered from 1 and have these files in their folders."""
    for number, kept in enumerate(runs, start=1):
        folder = files / RUNS_FOLDER.lstrip("/") / str(number)
        folder.mkdir(parents=True)
        for name, text in kept.items():
            (folder / name.replace("_", "-")).write_text(text)
    return Runs(files)


def test_latest_run_is_chosen_by_default_and_an_unknown_run_is_an_error(
    tmp_path: Path,
) -> None:
    runs = some_runs(tmp_path, *[{}] * 10)
    folder = tmp_path / RUNS_FOLDER.lstrip("/")
    for name in ("11x", "1" * 18, "lock"):
        (folder / name).mkdir()

    assert runs.numbers == [*range(1, 11)]
    assert (runs.chosen(None), runs.chosen(2)) == (10, 2)
    assert [runs.is_latest(number) for number in (9, 10)] == [False, True]
    with pytest.raises(HarnessError, match="has no run 11 of the provisioner; its runs are: 1, 2"):
        runs.chosen(11)
    none = Runs(tmp_path / "none")
    assert (none.numbers, none.chosen(None)) == ([], None)
    with pytest.raises(HarnessError, match="its runs are: none"):
        none.chosen(1)


def test_output_of_a_run_number_comes_from_the_last_run_with_that_number(tmp_path: Path) -> None:
    text = (
        "before\n-- run 1 of the provisioner: x\nbaked\n-- run 1 of the provisioner: y\none\n"
        " -- run 3 of the provisioner: no line of its own\n-- run 2 of the provisioner: z\ntwo"
    )
    runs = Runs(tmp_path)

    assert runs.output(1, text) == "one\n -- run 3 of the provisioner: no line of its own\n"
    assert runs.output(2, text) == "two"
    assert runs.output(3, text) == ""


def test_outcome_belongs_to_the_run_that_wrote_it(tmp_path: Path) -> None:
    rows: list[tuple[dict[str, str], dict[str, str], list[str | None]]] = [
        # Run 2 wrote another outcome.
        ({}, {"outcome_before": "one"}, ["one", "two"]),
        # Run 2 wrote no outcome.
        ({}, {"outcome_before": "two"}, ["two", None]),
        # Run 2 wrote the same text again; only the stamp of the file shows this.
        (
            {"outcome_stamp_before": "", "outcome_stamp_after": "5"},
            {"outcome_before": "two", "outcome_stamp_before": "5", "outcome_stamp_after": "6"},
            ["two", "two"],
        ),
        (
            {},
            {"outcome_before": "one", "outcome_stamp_before": "5", "outcome_stamp_after": "5"},
            ["one", None],
        ),
        # The machine stopped during run 2.
        ({}, {"outcome_before": "two", "outcome_stamp_before": "5"}, ["two", None]),
        # Run 1 removed the outcome, and run 2 wrote an outcome.
        ({"outcome_before": "old"}, {}, [None, "two"]),
    ]
    for number, (first, second, outcomes) in enumerate(rows):
        folder = tmp_path / str(number)
        runs = some_runs(folder, first, second)

        assert [runs.outcome(number, "two") for number in (1, 2)] == outcomes, first


def test_results_of_a_run_end_where_the_next_run_begins(tmp_path: Path) -> None:
    runs = some_runs(
        tmp_path,
        {},
        {"outcome_before": "one", "log_bytes_before": "3", "events_before": "/1"},
        {"outcome_before": "two", "log_bytes_before": "6", "events_before": "/1\n/2"},
        {"outcome_before": "three", "log_bytes_before": "11", "events_before": "/1\n/2\n/3"},
    )
    files = {f"/{number}": "{}" for number in range(1, 5)}

    found = [
        (
            runs.outcome(number, "four"),
            runs.log(number, b"onetwothreefour"),
            [*runs.events(number, files)],
        )
        for number in runs.numbers
    ]

    assert found == [
        ("one", b"one", ["/1"]),
        ("two", b"two", ["/2"]),
        ("three", b"three", ["/3"]),
        ("four", b"four", ["/4"]),
    ]


def test_log_of_a_run_ends_where_the_next_run_began(tmp_path: Path) -> None:
    rows: list[tuple[str, bytes, list[bytes | None]]] = [
        ("3", b"onetwo", [b"one", b"two"]),
        ("3\n", b"one", [b"one", b""]),
        ("", b"all", [b"", b"all"]),
        ("x", b"all", [b"", b"all"]),
        ("9", b"new", [None, b"new"]),
    ]
    for number, (second, content, logs) in enumerate(rows):
        folder = tmp_path / str(number)
        runs = some_runs(folder, {}, {"log_bytes_before": second})

        assert runs.log(2, content) == logs[1], second
        if logs[0] is None:
            with pytest.raises(
                HarnessError, match="The provisioner's log was replaced since run 1"
            ):
                runs.log(1, content)
        else:
            assert runs.log(1, content) == logs[0], second


def test_event_file_belongs_to_the_run_that_created_it(tmp_path: Path) -> None:
    runs = some_runs(
        tmp_path, {"events_before": "/e/0\n"}, {"events_before": "/e/0\n/e/1\n/e/gone\n"}
    )
    files = dict.fromkeys(("/e/0", "/e/1", "/e/2"), "{}")

    assert list(runs.events(1, files)) == ["/e/1"]
    assert list(runs.events(2, files)) == ["/e/2"]
