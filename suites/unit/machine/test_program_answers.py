"""The answer of a program is cached until the program's file changes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from harness.machine.program_answers import ProgramAnswers, RememberingRunner
from harness.shell.mocks.scripted_runner import ScriptedRunner

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    program = tmp_path / "qemu"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def answers(tmp_path: Path) -> ProgramAnswers:
    return ProgramAnswers(tmp_path / "cache" / "qemu.json")


def never() -> str:
    raise AssertionError("The program was asked again.")


def test_answer_of_a_program_is_cached(program: Path, answers: ProgramAnswers) -> None:
    assert answers.answer(str(program), "version", lambda: "7.2") == "7.2"
    assert answers.answer(str(program), "devices", lambda: "many") == "many"

    assert answers.answer(str(program), "version", never) == "7.2"
    assert answers.answer(str(program), "devices", never) == "many"


@pytest.mark.parametrize("how", ["renamed over", "written over", "while it is asked"])
def test_replaced_program_is_queried_again(
    program: Path, answers: ProgramAnswers, how: str
) -> None:
    """Cached answers of another program are kept."""
    other = program.with_name("other")

    def replace() -> str:
        before = program.stat()
        if how == "written over":
            # `cp -p` also keeps the time of the file.
            while program.stat().st_ctime_ns == before.st_ctime_ns:
                program.write_text("#!/bin/sh\n")
                os.utime(program, ns=(before.st_atime_ns, before.st_mtime_ns))
        else:
            other.write_text("#!/bin/sh\n")
            other.chmod(0o755)
            other.rename(program)
        return "7.2"

    beside = program.with_name("beside")
    beside.write_text("#!/bin/sh\n")
    beside.chmod(0o755)
    answers.answer(str(beside), "version", lambda: "1")
    if how == "while it is asked":
        answers.answer(str(program), "version", replace)
    else:
        answers.answer(str(program), "version", lambda: "7.2")
        replace()

    assert answers.answer(str(program), "version", lambda: "11.1") == "11.1"
    assert answers.answer(str(program), "version", never) == "11.1"
    assert answers.answer(str(beside), "version", never) == "1"


def test_answer_for_a_missing_program_is_not_cached(answers: ProgramAnswers) -> None:
    for answer in ("one", "two"):
        assert answers.answer("program-that-is-not-there", "version", lambda: answer) == answer  # noqa: B023


def test_answer_none_is_not_cached(program: Path, answers: ProgramAnswers) -> None:
    assert answers.answer(str(program), "version", lambda: None) is None

    assert answers.answer(str(program), "version", lambda: "7.2") == "7.2"


def test_damaged_cache_is_ignored_and_rewritten(
    program: Path, answers: ProgramAnswers, tmp_path: Path
) -> None:
    kept = tmp_path / "cache" / "qemu.json"
    kept.parent.mkdir()
    for content in ("", "[]", '{"PATH": 1}', '{"PATH": {"file": 1}}'):
        kept.write_text(content.replace("PATH", str(program)))

        assert answers.answer(str(program), "version", lambda: "7.2") == "7.2"
        assert answers.answer(str(program), "version", never) == "7.2"


def test_answer_is_returned_and_no_temporary_file_is_left_if_the_cache_file_cannot_be_replaced(
    program: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "cache" / "qemu.json"
    (kept / "in the way").mkdir(parents=True)

    assert ProgramAnswers(kept).answer(str(program), "version", lambda: "7.2") == "7.2"

    assert list(kept.parent.iterdir()) == [kept]


def test_answer_that_cannot_be_cached_is_returned(program: Path, tmp_path: Path) -> None:
    """A file with such a long name can be neither made nor removed."""
    answers = ProgramAnswers(tmp_path / "cache" / ("q" * 255))

    assert answers.answer(str(program), "version", lambda: "7.2") == "7.2"
    assert answers.answer(str(program), "version", lambda: "7.2.1") == "7.2.1"


def test_command_that_succeeded_is_not_run_again(program: Path, answers: ProgramAnswers) -> None:
    asked = [str(program), "-device", "help"]
    with ScriptedRunner().expect(asked, stdout="name", stderr="warning") as once:
        first = RememberingRunner(once, answers).run(asked, timeout_s=1)

    with ScriptedRunner() as silent:
        again = RememberingRunner(silent, answers).run(asked, timeout_s=1)

    for result in (first, again):
        assert result.argv == tuple(asked)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "name", "warning")


@pytest.mark.parametrize("stored", ["[", "7", '["out"]', "null"])
def test_command_is_run_again_if_its_stored_output_is_damaged(
    program: Path, answers: ProgramAnswers, stored: str
) -> None:
    answers.answer(str(program), "[]", lambda: stored)

    with ScriptedRunner().expect([str(program)], stdout="7.2") as once:
        assert RememberingRunner(once, answers).run([str(program)], timeout_s=1).stdout == "7.2"


def test_command_that_failed_is_run_again(program: Path, answers: ProgramAnswers) -> None:
    asked = [str(program), "--version"]
    once = ScriptedRunner().expect(asked, exit_code=1, stdout="half", stderr="no memory")
    runner = once.expect(asked)

    with runner:
        failed = RememberingRunner(runner, answers).run(asked, timeout_s=1)
        well = RememberingRunner(runner, answers).run(asked, timeout_s=1)

    assert (failed.exit_code, failed.stderr) == (1, "no memory")
    assert well.ok


def test_command_output_is_cached_separately_for_other_arguments(
    program: Path, answers: ProgramAnswers
) -> None:
    devices, machines = [str(program), "-device", "help"], [str(program), "-machine", "help"]
    runner = ScriptedRunner().expect(devices, stdout="devices").expect(machines, stdout="machines")

    with runner:
        outputs = [
            RememberingRunner(runner, answers).run(asked, timeout_s=1).stdout
            for asked in (devices, machines)
        ]

    assert outputs == ["devices", "machines"]


def test_command_runs_with_the_given_time_limit_and_input_and_environment(
    program: Path, answers: ProgramAnswers
) -> None:
    asked, environment = [str(program)], {"LC_ALL": "C"}

    with ScriptedRunner().expect(asked, timeout_s=2.5, stdin="quit", env=environment) as runner:
        RememberingRunner(runner, answers).run(asked, timeout_s=2.5, stdin="quit", env=environment)
