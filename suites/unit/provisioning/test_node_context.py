"""The context of a node: the answers of commands, and the time limits of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.provisioning.node_context import LimitedRunner
from harness.provisioning.wait import Deadline
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.fakes.clock import FakeClock

from .fakes import make_node

if TYPE_CHECKING:
    from pathlib import Path


def test_answer_is_the_stripped_output_or_is_none_if_the_command_failed(tmp_path: Path) -> None:
    with (
        ScriptedRunner()
        .expect("uname -r", timeout_s=30, stdout=" 6.1\n")
        .expect("uname -r", exit_code=1, stdout="6.1") as runner
    ):
        node = make_node(runner, tmp_path)

        assert node.answer("uname", "-r") == "6.1"
        assert node.answer("uname", "-r") is None


def test_multiplied_command_limit_does_not_exceed_the_deadline_of_the_run() -> None:
    clock = FakeClock()
    with (
        ScriptedRunner().expect("a", timeout_s=50).expect("a", timeout_s=20) as scripted,
    ):
        runner = LimitedRunner(scripted, Deadline.after(60, clock), multiplier=2.5)

        runner.run(("a",), timeout_s=20)
        clock.advance(40)
        runner.run(("a",), timeout_s=20)


def test_command_limit_does_not_exceed_the_remaining_time_of_the_run() -> None:
    clock = FakeClock()
    with (
        ScriptedRunner()
        .expect("a", timeout_s=30, env={"A": "b"}, stdin="in", stdout="out")
        .expect("a", timeout_s=10) as scripted
    ):
        runner = LimitedRunner(scripted, Deadline.after(60, clock))

        assert runner.run(("a",), timeout_s=30, stdin="in", env={"A": "b"}).stdout == "out"
        clock.advance(50)
        runner.run(("a",), timeout_s=30)
        clock.advance(10)
        result = runner.run(("a", "b"), timeout_s=30)

    assert (result.argv, result.exit_code, result.timed_out) == (("a", "b"), 124, True)
    assert result.stdout == ""
    assert result.stderr == "Not started: the time limit of the whole run has passed."
