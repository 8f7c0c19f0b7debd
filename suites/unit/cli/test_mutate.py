"""The exit codes and the reports of `harness mutate`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import main, mutate
from harness.mutate.mutants import mutants_of
from harness.mutate.results import Outcome
from harness.mutate.run import Report, Result


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fake mutation runs, which try no defects; return the request of each run."""
    asked: list[Any] = []

    def run(request: Any) -> Report:
        asked.append(request)
        return Report(results=[], texts={}, tests=1, unfit={}, left_out=0, seconds=1.0)

    monkeypatch.setattr("harness.mutate.run.run", run)
    monkeypatch.setattr(
        "harness.mutate.project_copy.Project", lambda *given, **named: (given, named)
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sh").write_text("#!/bin/bash\necho a\n")
    return asked


@pytest.mark.usefixtures("requests")
def test_exit_code_is_1_if_fewer_defects_are_noticed_than_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[tuple[list[Outcome], str | None, int]] = [
        ([Outcome.SURVIVED], None, 0),
        ([Outcome.KILLED, Outcome.SURVIVED, Outcome.NOT_TRIED], "50", 0),
        ([Outcome.KILLED, Outcome.SURVIVED, Outcome.NOT_REACHED], "50", 1),
        ([Outcome.NOT_TRIED], "0", 1),
        ([], "80", 0),
    ]
    for outcomes, least, code in rows:
        script, text = Path("a.sh"), b"rm a\n"
        (mutant, *_) = mutants_of(text)
        results = [Result(script=script, mutant=mutant, outcome=each) for each in outcomes]
        report = Report(
            results=results, texts={script: text}, tests=1, unfit={}, left_out=0, seconds=1.0
        )
        monkeypatch.setattr("harness.mutate.run.run", lambda _, report=report: report)

        assert main(["mutate", "a.sh", *([f"--fail-under={least}"] if least else [])]) == code, (
            outcomes
        )


def test_options_are_passed_to_the_mutation_run_and_each_requested_report_is_written(
    requests: list[Any], tmp_path: Path
) -> None:
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "html", "sarif", "markdown")}

    assert main(
        [
            "mutate", "a.sh", "--machines", "--workers=3", "--since=HEAD", "--messages", "--minutes=2",
            "--pytest-option=--image=x", "--pytest-option=-q", "--tests", "t",
            *(f"--{kind}={file}" for kind, file in files.items()),
        ]
    ) == 0  # fmt: skip

    (request,) = requests
    assert (request.workers, request.since, request.messages) == (3, "HEAD", True)
    # The tests run in a copy of the project without the reports.
    assert request.project == ((tmp_path, [Path("a.sh")]), {"without": [*files.values()]})
    assert request.until == pytest.approx(time.monotonic() + 120, abs=60)
    assert (request.tests.paths, request.tests.with_machines) == (("t",), True)
    assert request.tests.options == ("--image=x", "-q")
    assert all(file.stat().st_size for file in files.values())
    assert json.loads(files["sarif"].read_text())["version"] == "2.1.0"


def test_mutate_command_prints_at_most_one_progress_line_in_ten_seconds(
    requests: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(mutate, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert main(["mutate", "a.sh"]) == 0
    capsys.readouterr()
    (request,) = requests
    assert (request.since, request.until) == (None, None)

    for second in (101, 110, 111, 119, 121):
        now[0] = second
        request.progress(f"at {second}")

    assert capsys.readouterr().err == "at 110\nat 121\n"


def test_wrong_number_or_report_path_is_refused_before_anything_runs(
    requests: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for option, message in (
        ("--minutes=0", "The number must be greater than 0."),
        ("--minutes=nan", "The number must be greater than 0."),
        ("--workers=0", "The number must be greater than 0."),
        ("--fail-under=101", "101 was given, but a percentage from 0 to 100 was expected."),
        ("--fail-under=nan", "nan was given, but a percentage from 0 to 100 was expected."),
        ("--json=absent/a", "'absent/a' is a folder, or is in a folder that does not exist"),
        ("--html=.", "'.' is a folder"),
        ("--sarif=", "'.' is a folder"),
        ("--markdown=a.sh/a", "'a.sh/a' is a folder, or is in a folder that does not exist"),
    ):
        assert main(["mutate", "a.sh", option]) == 2, option

        assert f"{option.partition('=')[0]}: {message}" in capsys.readouterr().err, option
        assert requests == [], option
