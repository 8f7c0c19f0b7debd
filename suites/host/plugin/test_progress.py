"""Progress of machines that a run of pytest shows while tests run, although pytest captures output."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING

import pexpect
import pytest

from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PATIENCE_S = 120.0

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
    input_comes()
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
#: The control sequences that begin the drawing of rows, and that remove rows.
_DRAWN, _REMOVED = "\x1b7", "\x1b[J"


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    """Return a folder with tests that send progress events of machines."""
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_machines.py").write_text(_TESTS)
    return tmp_path


@pytest.fixture
def live(machines: Path) -> Path:
    """Return a folder with tests that wait until the pipe `go-on` in this folder is written to."""
    (machines / "test_machines.py").write_text(_LIVE)
    LocalRunner().run(["mkfifo", str(machines / "go-on")], timeout_s=10.0).check("A pipe")
    return machines


def _argv(folder: Path, *options: str, environment: tuple[str, ...] = ()) -> list[str]:
    return [
        # A shell starts background processes with SIGINT ignored, and this run may be one of these.
        *("env", "--default-signal=INT", "-C", str(folder)),
        *("-u", "CI", "-u", "NO_COLOR", "-u", "PYTEST_ADDOPTS"),
        *("TERM=xterm", *environment),
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-q"),
        *("-p", "no:hypothesispytest"),
        *options,
    ]


@contextlib.contextmanager
def _at_a_terminal(argv: list[str], columns: int = 80) -> Iterator[pexpect.spawn[str]]:
    terminal = pexpect.spawn(
        argv[0], argv[1:], timeout=_PATIENCE_S, encoding="utf-8", dimensions=(24, columns)
    )
    try:
        yield terminal
    finally:
        # After a failure, the inner run may still wait for its pipe.
        terminal.close(force=True)


def _rest(terminal: pexpect.spawn[str]) -> str:
    terminal.expect(pexpect.EOF)
    assert isinstance(terminal.before, str)
    return terminal.before


def test_progress_lines_have_the_time_and_bypass_output_capture(machines: Path) -> None:
    result = LocalRunner().run(_argv(machines, "-n", "0"), timeout_s=_PATIENCE_S)

    assert result.ok
    said = re.findall(r"^[0-9:]{8} \[node-(\d)\] build: installing$", result.stderr, re.MULTILINE)
    assert sorted(said) == ["0", "1"]
    assert "what a test prints" not in result.stderr + result.stdout


def test_progress_line_of_a_worker_is_printed_with_the_name_of_the_worker(machines: Path) -> None:
    result = LocalRunner().run(_argv(machines, "-n", "2"), timeout_s=_PATIENCE_S)

    assert result.ok
    said = re.findall(r"^[0-9:]{8} gw\d \[node-(\d)\] build: ", result.stderr, re.MULTILINE)
    assert sorted(said) == ["0", "1"]


@pytest.mark.parametrize("word", ["CI=true", "-s", "--capture=tee-sys"])
def test_terminal_shows_lines_instead_of_progress_rows_in_ci_or_without_capture(
    machines: Path, word: str
) -> None:
    options, environment = ((), (word,)) if word[0] != "-" else ((word,), ())

    argv = _argv(machines, "-n", "0", *options, environment=environment)
    with _at_a_terminal(argv) as terminal:
        output = _rest(terminal)

    assert "[node-1] build: installing" in output
    assert _DRAWN not in output


@pytest.mark.parametrize("workers", ["0", "1"])
def test_progress_rows_are_removed_when_the_run_ends(live: Path, workers: str) -> None:
    with _at_a_terminal(_argv(live, "-k", "of_a_machine", "-n", workers)) as terminal:
        terminal.expect(r"node-1.*waits for cloud-init.*\x1b8")
        (live / "go-on").write_text("")

        assert "1 passed" in _rest(terminal).rpartition(_REMOVED)[2]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_progress_rows_are_removed_when_a_person_interrupts_the_run(
    live: Path, workers: str
) -> None:
    with _at_a_terminal(_argv(live, "-k", "of_a_machine", "-n", workers)) as terminal:
        terminal.expect(r"node-1.*\x1b8")
        terminal.sendintr()

        _, removed, below = _rest(terminal).rpartition(_REMOVED)
        assert removed
        assert "KeyboardInterrupt" in below
        assert "node-1" not in below


def test_progress_rows_fit_the_terminal_width_and_have_no_colours_if_no_color_is_set(
    live: Path,
) -> None:
    argv = _argv(live, "-k", "of_a_machine", "-n", "0", environment=("NO_COLOR=1",))
    with _at_a_terminal(argv, columns=40) as terminal:
        terminal.expect(r"\x1b\[2K([^\r]*node-1[^\r]*)\x1b8")
        assert isinstance(terminal.match, re.Match)
        row = terminal.match[1]
        (live / "go-on").write_text("")
        _rest(terminal)

        assert len(row) < 40
        assert "\x1b" not in row


def test_progress_rows_of_a_killed_worker_are_removed(live: Path) -> None:
    with _at_a_terminal(_argv(live, "-n", "1", "-k", "kills or of_a_machine")) as terminal:
        terminal.expect(r"node-2.*boots.*\x1b8")
        (live / "go-on").write_text("")
        terminal.expect(r"node-1.*waits for cloud-init.*\x1b8")
        # Rows may also be drawn again before pytest notices that the worker has ended.
        terminal.expect(r"\x1b\[J((?!node-2|\x1b8).)*node-1((?!node-2|\x1b8).)*\x1b8")
        (live / "go-on").write_text("")

        assert "node-2" not in _rest(terminal).rpartition(_REMOVED)[0]


def test_no_row_is_drawn_at_the_prompt_of_a_debugger(live: Path) -> None:
    with _at_a_terminal(_argv(live, "-k", "prompt", "-n", "0")) as terminal:
        terminal.expect_exact("(Pdb) ")
        terminal.sendline("announce(event)")
        terminal.expect_exact("(Pdb) ")
        assert isinstance(terminal.before, str)
        assert _DRAWN not in terminal.before

        terminal.sendline("continue")
        terminal.expect(r"node-3.*boots.*\x1b8")
        (live / "go-on").write_text("")
        assert "1 passed" in _rest(terminal)


def test_rows_are_removed_before_the_debugger_prompt_after_a_failure(live: Path) -> None:
    with _at_a_terminal(_argv(live, "-k", "fails", "-n", "0", "--pdb")) as terminal:
        terminal.expect_exact("(Pdb) ")
        assert isinstance(terminal.before, str)
        assert terminal.before.rfind(_REMOVED) > terminal.before.rfind(_DRAWN) > 0
        terminal.sendline("quit")

        assert _DRAWN not in _rest(terminal)
