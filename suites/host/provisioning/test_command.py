"""Runs of real commands: output, exit codes, time limits and interruption."""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from harness.provisioning import command
from harness.provisioning.command import LocalRunner, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for

RUNNER = LocalRunner()


def test_output_and_exit_code_are_returned() -> None:
    result = RUNNER.run(("sh", "-c", "echo out; echo err >&2; exit 3"), timeout_s=30)

    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert (result.ok, result.timed_out) == (False, False)
    assert result.argv == ("sh", "-c", "echo out; echo err >&2; exit 3")
    assert 0 < result.duration_s < 30


def test_command_reads_the_given_input_or_an_empty_input() -> None:
    assert RUNNER.run(("cat",), timeout_s=30, stdin="zwölf").stdout == "zwölf"
    assert RUNNER.run(("cat",), timeout_s=30).stdout == ""


def test_given_environment_is_added_to_the_environment_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINE", "1")
    line = 'echo "$MINE$YOURS"'

    assert RUNNER.run(("sh", "-c", line), timeout_s=30, env={"YOURS": "2"}).stdout == "12\n"
    assert RUNNER.run(("sh", "-c", line), timeout_s=30).stdout == "1\n"
    assert RUNNER.run(("sh", "-c", line), timeout_s=30, env={"MINE": "3"}).stdout == "3\n"


def test_output_that_is_not_utf8_is_replaced() -> None:
    script = r"printf 'a\377b'; printf 'c\377d' >&2"

    result = RUNNER.run(("sh", "-c", script), timeout_s=30)

    assert (result.stdout, result.stderr) == ("a\ufffdb", "c\ufffdd")


def test_argument_with_a_nul_gives_exit_code_126() -> None:
    result = RUNNER.run(("true", "a\0b"), timeout_s=30)

    assert (result.exit_code, result.stderr) == (126, "embedded null byte")


def test_input_that_is_not_utf8_reaches_the_command_unchanged() -> None:
    assert RUNNER.run(("od", "-An", "-tx1"), timeout_s=30, stdin="\udce9").stdout == " e9\n"


def test_missing_program_gives_exit_code_127() -> None:
    result = RUNNER.run(("/nonexistent/program",), timeout_s=30)

    assert (result.exit_code, result.stdout, result.timed_out) == (127, "", False)
    assert result.stderr == "[Errno 2] No such file or directory: '/nonexistent/program'"


def test_file_that_is_not_executable_gives_exit_code_126(tmp_path: Path) -> None:
    assert RUNNER.run((str(tmp_path),), timeout_s=30).exit_code == 126


def test_command_that_exceeds_its_time_limit_is_killed_with_its_children() -> None:
    # A child that is still alive would hold the output until it prints.
    script = "(sleep 3; echo survived) & echo started; wait"

    result = RUNNER.run(("sh", "-c", script), timeout_s=0.3)

    assert (result.exit_code, result.timed_out, result.ok) == (124, True, False)
    assert result.stdout == "started\n"


def test_input_and_outputs_may_exceed_the_size_of_a_pipe() -> None:
    text = "x" * 300_000

    result = RUNNER.run(("tee", "/dev/stderr"), timeout_s=30, stdin=text)

    assert (result.ok, result.stdout, result.stderr) == (True, text, text)


def test_command_that_stops_reading_its_input_is_killed_at_its_time_limit() -> None:
    script = "head -c 8192 >/dev/null; sleep 3"

    result = RUNNER.run(("sh", "-c", script), timeout_s=0.3, stdin="x" * 300_000)

    assert (result.exit_code, result.timed_out) == (124, True)


def test_command_that_does_not_read_its_input_succeeds() -> None:
    assert RUNNER.run(("true",), timeout_s=30, stdin="x" * 300_000).ok


def test_run_waits_for_a_command_that_closes_its_output() -> None:
    script = "exec >&- 2>&-; sleep 0.3; exit 3"

    assert RUNNER.run(("sh", "-c", script), timeout_s=30).exit_code == 3


def test_no_process_group_is_killed_after_a_command_that_exits_normally(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[object] = []
    monkeypatch.setattr(command, "_kill_group", killed.append)

    assert RUNNER.run(("sh", "-c", "echo out; echo err >&2"), timeout_s=4).ok
    assert killed == []


def test_run_leaves_no_file_descriptor_open() -> None:
    before = sorted(
        Path("/proc/self/fd").iterdir()
    )  # includes the descriptor of the listing itself

    RUNNER.run(("cat",), timeout_s=30, stdin="x")
    RUNNER.run(("sleep", "60"), timeout_s=0.1, stdin="x" * 300_000)

    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_exit_code_is_negative_if_a_signal_killed_the_command() -> None:
    assert RUNNER.run(("sh", "-c", "kill -TERM $$"), timeout_s=30).exit_code == -15


@pytest.mark.parametrize("to", ["", ">&2"])
def test_command_that_writes_without_end_is_killed(to: str) -> None:
    started = time.monotonic()

    result = LocalRunner(most_output_bytes=1 << 20).run(["sh", "-c", f"yes {to}"], timeout_s=60)

    assert time.monotonic() - started < 30
    assert not result.ok
    assert result.wrote_too_much
    assert not result.timed_out
    assert 1 << 20 < len(result.stdout + result.stderr) < 2 << 20
    assert "killed, since its output exceeded the limit" in result.render()


@pytest.mark.parametrize(
    ("script", "is_kept"),
    [
        ("printf 1234567890", True),
        ("printf 12345678901", False),
        ("printf 12345; printf 67890 >&2", True),
        ("printf 12345; printf 678901 >&2", False),
        ("printf 12345678901 >&2", False),
    ],
)
def test_output_limit_applies_to_stdout_and_stderr_together(script: str, *, is_kept: bool) -> None:
    result = LocalRunner(most_output_bytes=10).run(["sh", "-c", script], timeout_s=30)

    assert result.wrote_too_much is not is_kept
    assert result.ok is is_kept


def test_spawned_process_runs_in_its_own_session_with_the_given_folder_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("YOURS", "9")
    out = tmp_path / "out"
    script = (
        "import os; print(os.getcwd(), os.environ['MINE'] + os.environ['YOURS'],"
        " os.getsid(0) == os.getpid())"
    )
    with out.open("wb") as file:
        process = spawn(
            (sys.executable, "-I", "-S", "-c", script),
            stdout=file,
            env={"YOURS": "2"},
            cwd=tmp_path,
        )
        assert process.wait(timeout=30) == 0

    assert out.read_text() == f"{tmp_path} 12 True\n"


def test_command_is_killed_when_the_run_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[command.ChildProcess] = []
    children: list[Path] = []

    def interrupt(process: command.ChildProcess, *_: object) -> None:
        assert process.stdout is not None
        started.append(process)
        children.append(Path(f"/proc/{int(process.stdout.readline())}/exe"))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_finish", interrupt)

    with pytest.raises(KeyboardInterrupt):
        RUNNER.run(("sh", "-c", "sleep 60 & echo $!; wait"), timeout_s=30)

    (process,), (child,) = started, children
    assert process.returncode == -9
    wait_for(
        "the child's end",
        lambda: Observation(None if child.exists() else True, f"{child} is there"),
        Deadline.after(20),
        interval_s=0.01,
    )


def test_killing_a_group_that_has_ended_does_nothing() -> None:
    process = spawn(("true",))
    process.wait(timeout=30)

    command._kill_group(process)


class Killable:
    """A fake process that can be killed."""

    def __init__(self) -> None:
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True


def test_process_is_killed_if_it_starts_after_its_caller_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Killable()
    starting: Future[command.ChildProcess] = Future()

    class Starter:
        def submit(self, *_: object, **__: object) -> Future[command.ChildProcess]:
            return starting

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(command, "_starter", lambda _: Starter())
        interrupted.setattr(starting, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            spawn(("true",))

    starting.set_result(process)  # type: ignore[arg-type]

    assert process.is_killed


def test_process_that_never_started_is_not_killed() -> None:
    cancelled: Future[command.ChildProcess] = Future()
    cancelled.cancel()
    failed: Future[command.ChildProcess] = Future()
    failed.set_exception(FileNotFoundError())

    command._kill_started(cancelled)
    command._kill_started(failed)
