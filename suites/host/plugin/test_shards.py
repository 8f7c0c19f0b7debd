"""Shards of a run of pytest: which tests they run, what they record, and the merge of their reports."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from harness.cli import main
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import CommandResult

_SUITE = """\
import pytest

@pytest.fixture(scope="session")
def lab(): ...

@pytest.fixture(scope="session")
def state_one(lab): ...

@pytest.fixture(scope="session")
def state_two(lab): ...

@pytest.mark.parametrize("number", range(6))
def test_one(state_one, number): ...

@pytest.mark.parametrize("number", range(6))
def test_two(state_two, number):
    assert number != 5, f"{number} is wrong"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "test_suite.py").write_text(_SUITE)
    return folder


def run(project: Path, *arguments: str, env: dict[str, str] | None = None) -> CommandResult:
    return LocalRunner().run(
        [
            *("env", "--chdir", str(project), sys.executable, "-m", "pytest", "-q"),
            *("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest"),
            *("--rootdir", str(project), *arguments),
        ],
        timeout_s=120,
        env=env,
    )


@pytest.mark.parametrize("workers", ["0", "2"])
def test_merged_report_of_two_shards_has_each_test_once(
    project: Path, tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        result = run(project, "-n", workers, f"--shard={number}/2", f"--report-dir=r/{number}")
        assert f"shard {number}/2: 6 of 12 tests" in result.stdout

    code = main(["report", "merge", str(project / "r"), "--to", str(tmp_path / "to")])

    assert code == 1
    assert "### 1 failed: AssertionError: N is wrong" in capsys.readouterr().out
    cases = ET.parse(tmp_path / "to/junit.xml").getroot().iter("testcase")  # noqa: S314 - our own
    names = [case.get("name", "") for case in cases]
    assert len(names) == len(set(names)) == 12
    assert len(list((tmp_path / "to/allure").glob("*-result.json"))) == 12
    # Each family is in one shard.
    assert {name[:8] for name in names[:6]} in ({"test_one"}, {"test_two"})


def test_merge_includes_reports_that_are_written_outside_the_report_folder(
    project: Path, tmp_path: Path
) -> None:
    own = ("--report-dir=r", "--junitxml=own.xml", "--alluredir=own")
    run(project, "-n0", "-k", "one", *own)
    result = run(project, "-n", "1", "-k", "two", *own)

    code = main(["report", "merge", str(project / "r"), "--to", str(tmp_path / "to")])

    assert code == result.exit_code
    merged, named = (
        [case.get("name", "") for case in ET.parse(file).getroot().iter("testcase")]  # noqa: S314 - our own
        for file in (tmp_path / "to/junit.xml", project / "own.xml")
    )
    assert sorted(merged) == sorted(named)
    assert len(list((tmp_path / "to/allure").glob("*-result.json"))) == len(merged) == 6
    assert len(list((project / "own").glob("*-result.json"))) == 12


def test_junit_and_allure_options_may_point_into_the_report_folder(
    project: Path, tmp_path: Path
) -> None:
    start = tmp_path / "link/r/start-1"
    (tmp_path / "link").symlink_to(project)  # pytest would collect a link in the project too

    result = run(
        project,
        "-n0",
        "--report-dir=r",
        f"--junitxml={start}/junit.xml",
        f"--alluredir={start}/allure",
    )

    assert result.exit_code == 1, result.stdout
    assert (project / "r/shard.json").is_file()


def test_shard_auto_uses_the_slurm_array_index_and_the_recorded_durations(
    project: Path,
) -> None:
    durations = {
        f"test_suite.py::test_{name}[{number}]": seconds
        for name, seconds in (("one", 100.0), ("two", 1.0))
        for number in range(6)
    }
    (project / ".test_durations").write_text(json.dumps(durations))
    slurm = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "7"}

    result = run(project, "-n0", "--shard=auto", "--collect-only", env=slurm)

    assert "1/12 tests collected" in result.stdout


def test_shard_that_gets_no_tests_succeeds(project: Path) -> None:
    """The run is the second start of the shard."""
    (project / "r/start-1").mkdir(parents=True)

    result = run(project, "-n0", "--shard=13/13", "--report-dir=r")

    assert result.exit_code == 0, result.render()
    record = json.loads((project / "r/shard.json").read_text())
    assert (record["tests"], record["start"]) == ([], 2)


_MARK = (
    "@pytest.mark.parametrize('number', [pytest.param(each, id=each, "
    "marks=pytest.mark.provisioner(each)) for each in 'xy'])"
)


@pytest.mark.parametrize(
    ("images", "mark"),
    [
        pytest.param("debian-12,debian-13", "", id="image"),
        pytest.param("debian-12", _MARK, id="provisioner"),
    ],
)
def test_tests_of_one_image_or_provisioner_are_in_the_same_shard(
    project: Path, images: str, mark: str
) -> None:
    """These tests share saved states, which a shard makes once; tests of both kinds alternate."""
    tests = "".join(
        f"{mark}\ndef test_{name}(baked{', number' if mark else ''}): ...\n" for name in "abcd"
    )
    (project / "test_suite.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\ndef lab(): ...\n"
        "@pytest.fixture(scope='session')\ndef image_name(request): ...\n"
        f"@pytest.fixture(scope='session')\ndef baked(lab, image_name): ...\n{tests}"
    )

    result = run(project, "-n0", f"--image={images}", "--shard=1/2", "--collect-only")

    chosen = [line for line in result.stdout.splitlines() if "::test_" in line]
    assert len(chosen) == 4, result.render()
    assert len({line.partition("[")[2] for line in chosen}) == 1, chosen


def test_shard_number_above_the_number_of_shards_is_a_usage_error(project: Path) -> None:
    result = run(project, "--shard=3/2")

    assert result.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "--shard: 3/2 is not a shard" in result.stderr


def test_run_stops_without_a_shard_record_if_its_job_was_started_again(project: Path) -> None:
    (project / "conftest.py").write_text(
        "import pathlib\n"
        "def pytest_runtest_teardown(item):\n"
        "    if item.name == 'test_one[2]':\n"
        "        pathlib.Path('r/start-2').mkdir()\n"
    )

    result = run(project, "-n0", "--shard=1/1", "--report-dir=r")

    assert "this shard was started again" in result.stdout
    assert "3 passed" in result.stdout
    assert not (project / "r/shard.json").exists()


def test_shard_runs_tests_in_folders_with_their_own_conftest(project: Path) -> None:
    """With several conftest.py files, pytest keeps plugins in sets, so plugins must be hashable."""
    for name in ("one", "two"):
        (project / name).mkdir()
        (project / name / "conftest.py").touch()
        (project / name / f"test_{name}.py").write_text(
            "import time\ndef test_it(): time.sleep(0.2)\n"
        )

    result = run(project, "-n0", "--shard=1/1", "--report-dir=r", "one", "two")

    assert result.exit_code == 0, result.render()
    assert "shard 1/1: 2 of 2 tests" in result.stdout
    durations = json.loads((project / "r/start-1/durations.json").read_text())
    assert [seconds >= 0.2 for seconds in durations.values()] == [True, True]
    assert json.loads((project / "r/shard.json").read_text())["repeated"] == []


def test_test_during_which_the_job_was_cancelled_is_recorded_as_not_run(project: Path) -> None:
    (project / "test_suite.py").write_text(
        "import os, signal\n"
        "def test_first(): ...\n"
        "def test_second(): os.kill(os.getpid(), signal.SIGTERM)\n"
    )

    result = run(project, "-n0", "--shard=1/1", "--report-dir=r")

    assert result.exit_code == pytest.ExitCode.INTERRUPTED, result.render()
    assert json.loads((project / "r/shard.json").read_text())["ran"] == [
        "test_suite.py::test_first"
    ]
    cases = ET.parse(project / "r/start-1/junit.xml").getroot().iter("testcase")  # noqa: S314 - our own
    assert [case.get("name", "") for case in cases] == ["test_first"]


def test_first_four_tests_of_a_shard_are_divided_between_both_workers(project: Path) -> None:
    """By default, xdist sends an eighth of the tests, here four, to a worker at once."""
    (project / "test_suite.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.mark.parametrize('number', range(32))\n"
        "def test_one(number):\n"
        "    pathlib.Path(f'{number}').write_text(os.environ['PYTEST_XDIST_WORKER'])\n"
    )

    run(project, "-n2", "--shard=1/1").check("The shard")

    assert len({(project / str(number)).read_text() for number in range(4)}) == 2
