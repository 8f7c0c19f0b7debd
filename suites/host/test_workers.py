"""Workers of a run of unit tests share the test files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner
from suites import workers

if TYPE_CHECKING:
    from harness.provisioning.command import CommandResult

REPOSITORY = Path(workers.__file__).parents[1]
LOGGED = "import os\nwith open('collected.txt', 'a') as file: file.write(f'{__name__}\\n')\n"


REPORTS = """
def pytest_runtest_logreport(report):
    if hasattr(report, "node"):
        with open("reports.txt", "a") as file: file.write(f"{report.nodeid[-1]} {report.when}\\n")
"""


def run(folder: Path, *arguments: str, conftest: str = "", **files: str) -> CommandResult:
    """Run unit tests of these files, each of which logs that it was collected, on two workers."""
    unit = folder / "suites" / "unit"
    unit.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (folder / "conftest.py").write_text(f"pytest_plugins = ['suites.workers']\n{conftest}")
    for name, text in files.items():
        (unit / f"test_{name}.py").write_text(LOGGED + text)
    python = [sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "xdist.plugin"]
    return LocalRunner().run(
        ["env", "-C", str(folder), *python, *arguments],
        timeout_s=100,
        env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def collected(folder: Path) -> list[str]:
    names = (folder / "collected.txt").read_text().split()
    return sorted(name.rpartition(".")[2] for name in names)


def test_each_file_is_collected_by_one_worker(tmp_path: Path) -> None:
    test = "def test_1(): pass\ndef test_2(): pass\n"

    result = run(tmp_path, "suites/unit", a=test, b=test, c=test)

    assert "6 passed" in result.stdout, result.render()
    assert re.findall(r"\[ *(\d+)%\]", result.stdout)[-1] == "100"
    assert collected(tmp_path) == ["test_a", "test_b", "test_c"]


def test_worker_without_a_file_does_not_fail_the_run(tmp_path: Path) -> None:
    result = run(tmp_path, "suites/unit", a="def test_1(): pass\n")

    assert result.exit_code == 0, result.render()
    assert "1 passed" in result.stdout


def test_next_worker_runs_the_tests_of_a_killed_worker(tmp_path: Path) -> None:
    dies = "def test_1(): pass\ndef test_2(): os._exit(3)\ndef test_3(): pass\n"

    result = run(tmp_path, "suites/unit", a=dies, b="def test_1(): pass\n")

    assert "1 failed, 3 passed" in result.stdout, result.render()


def test_file_argument_on_the_command_line_is_collected_by_each_worker(tmp_path: Path) -> None:
    test = "def test_1(): pass\ndef test_2(): pass\n"

    result = run(tmp_path, "suites/unit/test_a.py", a=test, b=test)

    assert "2 passed" in result.stdout, result.render()
    assert collected(tmp_path) == ["test_a", "test_a"]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ((), {"call"}),
        (("--durations=1",), {"setup", "call", "teardown"}),
        (("--junitxml=junit.xml",), {"setup", "call", "teardown"}),
    ],
)
def test_setup_and_teardown_of_a_passed_test_are_reported_only_with_durations_or_junitxml(
    tmp_path: Path, options: tuple[str, ...], kinds: set[str]
) -> None:
    result = run(tmp_path, "suites/unit", *options, conftest=REPORTS, a="def test_1(): pass\n")

    assert "1 passed" in result.stdout, result.render()
    assert {*(tmp_path / "reports.txt").read_text().splitlines()} == {
        f"1 {kind}" for kind in kinds
    }


def test_each_phase_of_a_test_that_does_not_pass_is_reported(tmp_path: Path) -> None:
    text = """
import pytest
@pytest.fixture
def broken(): raise ValueError("in the set-up")
@pytest.fixture
def left():
    yield
    raise ValueError("in the teardown")
def test_1(broken): pass
def test_2(left): pass
def test_3(): assert not "in the call"
def test_4(): pytest.skip("for a reason")
@pytest.mark.xfail
def test_5(): assert False
"""
    result = run(tmp_path, "suites/unit", "-rs", a=text)

    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors" in result.stdout, result.render()
    for place in ("in the set-up", "in the teardown", "in the call", "for a reason"):
        assert place in result.stdout
