"""Commands that really run; only this module and test_spawn start processes."""

from __future__ import annotations

import os
import subprocess  # noqa: TID251  # what is replaced here
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from harness.provisioning import command
from harness.provisioning.command import CommandError, CommandResult, LocalRunner, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for

RUNNER = LocalRunner()


def test_output_and_exit_code_are_returned() -> None:
    result = RUNNER.run(("sh", "-c", "echo out; echo err >&2; exit 3"), timeout_s=30)

    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert (result.ok, result.timed_out) == (False, False)
    assert result.argv == ("sh", "-c", "echo out; echo err >&2; exit 3")
    assert 0 < result.duration_s < 30


def test_success_is_ok() -> None:
    assert RUNNER.run(("true",), timeout_s=30).ok


def test_input_is_handed_over_and_none_is_empty() -> None:
    assert RUNNER.run(("cat",), timeout_s=30, stdin="zwölf").stdout == "zwölf"
    assert RUNNER.run(("cat",), timeout_s=30).stdout == ""


def test_environment_is_added_to_the_processes_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "1")
    line = 'echo "$MINE$YOURS"'

    assert RUNNER.run(("sh", "-c", line), timeout_s=30, env={"YOURS": "2"}).stdout == "12\n"
    assert RUNNER.run(("sh", "-c", line), timeout_s=30).stdout == "1\n"
    assert RUNNER.run(("sh", "-c", line), timeout_s=30, env={"MINE": "3"}).stdout == "3\n"


def test_output_that_is_not_utf8_is_replaced() -> None:
    script = r"printf 'a\377b'; printf 'c\377d' >&2"

    result = RUNNER.run(("sh", "-c", script), timeout_s=30)

    assert (result.stdout, result.stderr) == ("a\ufffdb", "c\ufffdd")


def test_word_with_a_nul_is_a_result() -> None:
    result = RUNNER.run(("true", "a\0b"), timeout_s=30)

    assert (result.exit_code, result.stderr) == (126, "embedded null byte")


def test_input_that_is_not_utf8_arrives_as_it_was() -> None:
    assert RUNNER.run(("od", "-An", "-tx1"), timeout_s=30, stdin="\udce9").stdout == " e9\n"


def test_missing_program_gives_a_result() -> None:
    result = RUNNER.run(("/nonexistent/program",), timeout_s=30)

    assert (result.exit_code, result.stdout, result.timed_out) == (127, "", False)
    assert result.stderr == "[Errno 2] No such file or directory: '/nonexistent/program'"


def test_file_that_is_not_executable_gives_a_result(tmp_path: Path) -> None:
    assert RUNNER.run((str(tmp_path),), timeout_s=30).exit_code == 126


def test_command_past_its_limit_is_killed_with_its_children() -> None:
    # A child that is still alive would hold the output until it prints.
    script = "(sleep 3; echo survived) & echo started; wait"

    result = RUNNER.run(("sh", "-c", script), timeout_s=0.3)

    assert (result.exit_code, result.timed_out, result.ok) == (124, True, False)
    assert result.stdout == "started\n"


def test_more_than_a_pipe_holds_goes_in_and_out_at_once() -> None:
    text = "x" * 300_000

    result = RUNNER.run(("tee", "/dev/stderr"), timeout_s=30, stdin=text)

    assert (result.ok, result.stdout, result.stderr) == (True, text, text)


def test_command_that_stops_reading_its_input_is_killed_at_its_limit() -> None:
    script = "head -c 8192 >/dev/null; sleep 3"

    result = RUNNER.run(("sh", "-c", script), timeout_s=0.3, stdin="x" * 300_000)

    assert (result.exit_code, result.timed_out) == (124, True)


def test_input_that_is_not_read_is_not_an_error() -> None:
    assert RUNNER.run(("true",), timeout_s=30, stdin="x" * 300_000).ok


def test_command_that_closes_its_output_is_waited_for() -> None:
    script = "exec >&- 2>&-; sleep 0.3; exit 3"

    assert RUNNER.run(("sh", "-c", script), timeout_s=30).exit_code == 3


def test_command_that_ended_and_released_its_output_has_nothing_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[object] = []
    monkeypatch.setattr(command, "_kill_group", killed.append)

    assert RUNNER.run(("sh", "-c", "echo out; echo err >&2"), timeout_s=4).ok
    assert killed == []


def test_process_that_holds_the_output_of_a_command_that_ended_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.provisioning.command._LEFT_BEHIND_S", 0.2)

    result = RUNNER.run(("sh", "-c", "sleep 100 & echo $!"), timeout_s=50)

    assert result.exit_code == 0
    assert result.duration_s < 25
    left = Path(f"/proc/{int(result.stdout)}/stat")

    def has_ended() -> Observation[bool]:
        try:
            state = left.read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return Observation(True, "gone")
        return Observation(True if state == "Z" else None, f"state {state}")

    wait_for("the end of the process", has_ended, Deadline.after(20), interval_s=0.01)


def test_no_descriptor_is_left_open() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())  # the listing's own is one of them

    RUNNER.run(("cat",), timeout_s=30, stdin="x")
    RUNNER.run(("sleep", "60"), timeout_s=0.1, stdin="x" * 300_000)

    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_death_by_signal_is_negative() -> None:
    assert RUNNER.run(("sh", "-c", "kill -TERM $$"), timeout_s=30).exit_code == -15


def test_command_that_writes_without_end_is_killed() -> None:
    started = time.monotonic()

    result = LocalRunner(most_output_bytes=1 << 20).run(["yes"], timeout_s=60)

    assert time.monotonic() - started < 30
    assert not result.ok
    assert result.wrote_too_much
    assert not result.timed_out
    assert 1 << 20 < len(result.stdout) < 2 << 20
    assert "killed, since it wrote more than is kept" in result.render()


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
def test_limit_is_of_both_outputs_together(script: str, *, is_kept: bool) -> None:
    result = LocalRunner(most_output_bytes=10).run(["sh", "-c", script], timeout_s=30)

    assert result.wrote_too_much is not is_kept
    assert result.ok is is_kept


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (5, "command: abcde\nexit code: 1, after 0.0 s\nstdout: 12345\nstderr: 67890"),
        (
            3,
            (
                "command: abc [2 characters after are left out]\nexit code: 1, after 0.0 s\n"
                "stdout: [2 characters before are left out] 345\n"
                "stderr: [2 characters before are left out] 890"
            ),
        ),
    ],
)
def test_text_is_shortened_only_beyond_the_limit(most: int, words: str) -> None:
    result = CommandResult(argv=("abcde",), exit_code=1, stdout="12345", stderr="67890")

    assert result.render(most) == words


def test_whole_output_stays_in_the_error(tmp_path: Path) -> None:
    long = "x" * 100_000
    error = CommandError("It", CommandResult(argv=("a",), exit_code=1, stdout=long, stderr=""))

    error.name_file(str(tmp_path))

    assert long in error.whole
    assert str(error).endswith(f"\nThe whole output is in '{tmp_path}'.")
    assert str(error).startswith("It failed.\ncommand: a\n")


def test_message_shows_the_end_of_long_output() -> None:
    long = "".join(f"line {each}\n" for each in range(100_000))
    result = CommandResult(argv=("sh", "-c", "x" * 100_000), exit_code=1, stdout=long, stderr=long)

    error = CommandError("It", result)

    assert len(str(error)) < 8 << 10
    assert str(error).count("line 99999") == 2
    assert "stdout: [1086390 characters before are left out] " in str(error)


def test_spawned_process_has_its_folder_environment_and_session(
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
    started: list[subprocess.Popen[bytes]] = []
    children: list[Path] = []

    def interrupt(process: subprocess.Popen[bytes], *_: object) -> None:
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


def test_spawned_process_dies_with_this_one_and_has_the_given_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, object] = {}

    def see(argv: list[str], **rest: object) -> None:
        given.update(rest, argv=argv)

    monkeypatch.setattr(subprocess, "Popen", see)

    spawn(("a", "b"), stdin=3, stdout=4, stderr=5, pass_fds=(6,))

    assert given == {
        "argv": [
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *("sh", "-c", '[ "$PPID" = "$0" ] || exit 125; exec "$@"', str(os.getpid())),
            *("a", "b"),
        ],
        "stdin": 3,
        "stdout": 4,
        "stderr": 5,
        "pass_fds": (6,),
        "env": None,
        "cwd": None,
        "start_new_session": True,
    }


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


def test_process_that_starts_after_its_caller_gave_up_is_killed(
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
