"""Commands that leave processes behind or do not end: each run ends soon after its time limit."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning import command
from harness.provisioning.command import CommandResult, LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNNER = LocalRunner()


@contextlib.contextmanager
def ended_daemon(result: CommandResult) -> Iterator[CommandResult]:
    """Yield the result of a command that left a daemon, and end that daemon by the printed pid."""
    daemon = int(result.stdout.splitlines()[0])
    try:
        yield result
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon, signal.SIGKILL)


def test_late_output_of_background_processes_is_kept() -> None:
    # The shell ends at once; a background process still holds its output.
    script = "(sleep 1; echo late) & echo soon; exit 3"

    result = RUNNER.run(("sh", "-c", script), timeout_s=30)

    assert (result.exit_code, result.stdout, result.timed_out) == (3, "soon\nlate\n", False)


def test_command_that_leaves_a_daemon_behind_keeps_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "_LEFT_BEHIND_S", 0.1)
    monkeypatch.setattr(command, "_KILLED_S", 0.1)
    script = "echo words >&2; setsid sh -c 'sleep 9; echo late' & echo $!; exit 3"

    with ended_daemon(RUNNER.run(("sh", "-c", script), timeout_s=30)) as result:
        assert (result.exit_code, result.timed_out) == (3, False)
        assert result.stderr == "words\n"
        assert "late" not in result.stdout


def test_command_that_exits_before_its_time_limit_is_not_timed_out_despite_a_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "_LEFT_BEHIND_S", 60)
    monkeypatch.setattr(command, "_KILLED_S", 0.1)
    script = "setsid sh -c 'sleep 9; echo late' & echo $!; exit 0"

    with ended_daemon(RUNNER.run(("sh", "-c", script), timeout_s=2)) as result:
        assert (result.exit_code, result.timed_out, result.ok) == (0, False, True)
        assert "late" not in result.stdout


def test_background_process_that_keeps_the_output_open_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "_LEFT_BEHIND_S", 0.1)

    result = RUNNER.run(("sh", "-c", "sleep 60 & echo $!"), timeout_s=30)

    assert result.ok
    # The command line of a process that is dead but not reaped is empty.
    of_it = Path(f"/proc/{result.stdout.strip()}/cmdline")
    assert not of_it.exists() or of_it.read_bytes() == b""


def test_run_ends_in_time_if_a_daemon_holds_the_output_of_a_killed_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "_KILLED_S", 0.1)
    script = "echo words >&2; setsid sh -c 'sleep 9; echo late' & echo $!; sleep 60"

    with ended_daemon(RUNNER.run(("sh", "-c", script), timeout_s=1)) as result:
        assert (result.exit_code, result.timed_out) == (124, True)
        assert result.stderr == "words\n"
        assert "late" not in result.stdout


def test_command_that_closed_its_output_is_killed_at_the_time_limit() -> None:
    script = "echo $$; exec >&- 2>&-; exec sleep 60"

    result = RUNNER.run(("sh", "-c", script), timeout_s=1)

    assert (result.exit_code, result.timed_out) == (124, True)
    assert not Path(f"/proc/{result.stdout.strip()}").exists()


def test_run_ends_in_time_if_its_command_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Simulates a process that hangs in the kernel.
    monkeypatch.setattr(command, "_kill_group", lambda _: None)
    monkeypatch.setattr(command, "_KILLED_S", 0.1)

    with pytest.warns(ResourceWarning, match="is still running"):
        result = RUNNER.run(("sh", "-c", "echo $$; exec sleep 60"), timeout_s=1)

    pid = int(result.stdout)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (result.exit_code, result.timed_out) == (124, True)
