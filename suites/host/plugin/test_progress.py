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
import os
from harness.progress import ProgressEvent, Stage

def test_that_kills_its_worker(announce):
    announce(ProgressEvent(subject="node-2", stage=Stage.BUSY, message="boots"))
    os._exit(1)

def test_of_a_machine(announce):
    announce(ProgressEvent(subject="node-1", stage=Stage.BUSY, message="waits for cloud-init"))
    input_comes()

def test_that_fails(announce):
    announce(ProgressEvent(subject="node-4", stage=Stage.BUSY, message="boots"))
    raise ValueError("x")

def test_at_a_prompt(announce):
    event = ProgressEvent(subject="node-3", stage=Stage.BUSY, message="boots")
    breakpoint()
    input_comes()

def input_comes():
    with open("go-on") as pipe:
        pipe.read()
"""
#: What begins the drawing of rows, and removes them.
_DRAWN, _REMOVED = "\x1b7", "\x1b[J"


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    """Give the folder of tests that say what machines do."""
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_machines.py").write_text(_TESTS)
    return tmp_path


@pytest.fixture
def live(machines: Path) -> Path:
    """Give the folder of tests that go on when something is written to `go-on` there."""
    (machines / "test_machines.py").write_text(_LIVE)
    LocalRunner().run(["mkfifo", str(machines / "go-on")], timeout_s=10.0).check("A pipe")
    return machines


def _argv(folder: Path, *options: str, environment: tuple[str, ...] = ()) -> list[str]:
    return [
        *("env", "-C", str(folder), "-u", "CI", "-u", "NO_COLOR", "-u", "PYTEST_ADDOPTS"),
        *("TERM=xterm", *environment),
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-q"),
        *options,
    ]


def _at_a_terminal(argv: list[str], columns: int = 80) -> pexpect.spawn[str]:
    return pexpect.spawn(argv[0], argv[1:], timeout=60, encoding="utf-8", dimensions=(24, columns))


def _rest(terminal: pexpect.spawn[str]) -> str:
    terminal.expect(pexpect.EOF)
    assert isinstance(terminal.before, str)
    return terminal.before


def test_lines_have_the_time_and_come_past_the_capture(machines: Path) -> None:
    result = LocalRunner().run(_argv(machines, "-n", "0"), timeout_s=60.0)

    assert result.ok
    said = re.findall(r"^[0-9:]{8} \[node-(\d)\] build: installing$", result.stderr, re.MULTILINE)
    assert sorted(said) == ["0", "1"]
    assert "what a test prints" not in result.stderr + result.stdout


def test_lines_of_workers_reach_the_terminal_with_the_name_of_the_worker(machines: Path) -> None:
    result = LocalRunner().run(_argv(machines, "-n", "2"), timeout_s=60.0)

    assert result.ok
    said = re.findall(r"^[0-9:]{8} gw\d \[node-(\d)\] build: ", result.stderr, re.MULTILINE)
    assert sorted(said) == ["0", "1"]


def test_lines_of_workers_come_without_a_socket(machines: Path) -> None:
    too_long = machines / ("long" * 30)
    too_long.mkdir()

    argv = _argv(machines, "-n", "1", environment=(f"TMPDIR={too_long}",))
    result = LocalRunner().run(argv, timeout_s=60.0)

    assert result.ok
    assert "[node-0] build: installing" in result.stderr


@pytest.mark.parametrize("word", ["CI=true", "-s", "--capture=tee-sys"])
def test_terminal_shows_lines_where_rows_would_be_wrong(machines: Path, word: str) -> None:
    options, environment = ((), (word,)) if word[0] != "-" else ((word,), ())

    argv = _argv(machines, "-n", "0", *options, environment=environment)
    output = _rest(_at_a_terminal(argv))

    assert "[node-1] build: installing" in output
    assert _DRAWN not in output


@pytest.mark.parametrize("workers", ["0", "1"])
def test_rows_on_a_terminal_go_when_the_run_ends(live: Path, workers: str) -> None:
    terminal = _at_a_terminal(_argv(live, "-k", "of_a_machine", "-n", workers))
    terminal.expect(r"node-1.*waits for cloud-init.*\x1b8")
    (live / "go-on").write_text("")

    assert "1 passed" in _rest(terminal).rpartition(_REMOVED)[2]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_rows_go_when_a_person_interrupts_the_run(live: Path, workers: str) -> None:
    terminal = _at_a_terminal(_argv(live, "-k", "of_a_machine", "-n", workers))
    terminal.expect(r"node-1.*\x1b8")
    terminal.sendintr()

    _, removed, below = _rest(terminal).rpartition(_REMOVED)
    assert removed
    assert "KeyboardInterrupt" in below
    assert "node-1" not in below


def test_rows_fit_the_terminal_and_have_no_colours_where_none_are_wanted(live: Path) -> None:
    argv = _argv(live, "-k", "of_a_machine", "-n", "0", environment=("NO_COLOR=1",))
    terminal = _at_a_terminal(argv, columns=40)
    terminal.expect(r"\x1b\[2K([^\r]*node-1[^\r]*)\x1b8")
    assert isinstance(terminal.match, re.Match)
    row = terminal.match[1]
    (live / "go-on").write_text("")
    _rest(terminal)

    assert len(row) < 40
    assert "\x1b" not in row


def test_rows_of_a_worker_that_was_killed_go(live: Path) -> None:
    terminal = _at_a_terminal(_argv(live, "-n", "1", "-k", "kills or of_a_machine"))
    terminal.expect(r"node-2.*boots.*\x1b8")
    terminal.expect(r"node-1.*waits for cloud-init.*\x1b8")
    terminal.expect(r"\x1b\[J(.*)\x1b8")
    assert isinstance(terminal.match, re.Match)
    rows = terminal.match[1]
    (live / "go-on").write_text("")
    _rest(terminal)

    assert "node-1" in rows
    assert "node-2" not in rows


def test_no_row_is_drawn_at_the_prompt_of_a_debugger(live: Path) -> None:
    terminal = _at_a_terminal(_argv(live, "-k", "prompt", "-n", "0"))
    terminal.expect_exact("(Pdb) ")
    terminal.sendline("announce(event)")
    terminal.expect_exact("(Pdb) ")
    assert isinstance(terminal.before, str)
    assert _DRAWN not in terminal.before

    terminal.sendline("continue")
    terminal.expect(r"node-3.*boots.*\x1b8")
    (live / "go-on").write_text("")
    assert "1 passed" in _rest(terminal)


def test_rows_are_away_from_the_prompt_after_a_failure(live: Path) -> None:
    terminal = _at_a_terminal(_argv(live, "-k", "fails", "-n", "0", "--pdb"))
    terminal.expect_exact("(Pdb) ")
    assert isinstance(terminal.before, str)
    assert terminal.before.rfind(_REMOVED) > terminal.before.rfind(_DRAWN) > 0
    terminal.sendline("quit")

    assert _DRAWN not in _rest(terminal)
