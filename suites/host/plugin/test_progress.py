"""What a run of pytest shows of machines while its tests run, past its capture."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pexpect
import pytest

from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

_TESTS = """\
import pytest
from harness.progress import ProgressEvent, Stage

@pytest.mark.parametrize("number", range(2))
def test_of_a_machine(announce, number):
    announce(ProgressEvent(subject=f"node-{number}", stage=Stage.BUILD, message="installing"))
    print("what a test prints")
"""
_LIVE = """\
import pytest
from harness.progress import ProgressEvent, Stage

def test_of_a_machine(announce):
    announce(ProgressEvent(subject="node-1", stage=Stage.BUSY, message="waits for cloud-init"))
    input_comes()

def input_comes():
    with open("go-on") as pipe:
        pipe.read()
"""


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_machines.py").write_text(_TESTS)
    return [
        *("env", "-C", str(tmp_path), "-u", "CI", "-u", "PYTEST_ADDOPTS", "TERM=xterm"),
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"),
    ]


def test_lines_have_the_time_and_come_past_the_capture(argv: list[str]) -> None:
    result = LocalRunner().run([*argv, "-n", "0"], timeout_s=60.0)

    assert result.ok
    said = re.findall(r"^[0-9:]{8} \[node-(\d)\] build: installing$", result.stderr, re.MULTILINE)
    assert sorted(said) == ["0", "1"]
    assert "what a test prints" not in result.stderr + result.stdout


def test_lines_of_workers_reach_the_terminal_with_the_name_of_the_worker(argv: list[str]) -> None:
    result = LocalRunner().run([*argv, "-n", "2"], timeout_s=60.0)

    assert result.ok
    said = re.findall(r"^[0-9:]{8} gw\d \[node-(\d)\] build: ", result.stderr, re.MULTILINE)
    assert sorted(said) == ["0", "1"]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_rows_on_a_terminal_go_when_the_run_ends(
    argv: list[str], workers: str, tmp_path: Path
) -> None:
    (tmp_path / "test_machines.py").write_text(_LIVE)
    LocalRunner().run(["mkfifo", str(tmp_path / "go-on")], timeout_s=10.0).check("A pipe")

    terminal = pexpect.spawn(argv[0], [*argv[1:], "-n", workers], timeout=60, encoding="utf-8")
    terminal.expect(r"node-1.*waits for cloud-init.*\x1b8")
    (tmp_path / "go-on").write_text("")
    terminal.expect(pexpect.EOF)

    assert isinstance(terminal.before, str)
    assert "\x1b[J" in terminal.before
    assert "1 passed" in terminal.before.rpartition("\x1b[J")[2]
