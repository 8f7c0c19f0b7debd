"""Virtual time: what sleeps, waits and reads the clock agrees on one that only counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner
from harness.shell.clock import LIBRARY

if TYPE_CHECKING:
    from pathlib import Path

    from harness.shell.testing import Shell


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        ("sleep 5", [5]),
        ("sleep 1.5m 0.5", [90.5]),
        ("sleep 0.08 0.005", [0.085]),
        ("(sleep 2h)", [7200]),
        ("bash -c 'sleep 1d'", [86400]),
        ("env sleep 3 && command sleep 4", [3, 4]),
    ],
)
def test_sleeps_are_logged_and_take_no_time(shell: Shell, code: str, seconds: list[float]) -> None:
    assert [sleep.seconds for sleep in shell.evaluate(code).check().sleeps] == seconds


def test_clocks_of_the_shell_and_of_date_advance_together(shell: Shell) -> None:
    result = shell.evaluate(
        "a=$(date +%s) s=$SECONDS e=$EPOCHSECONDS; sleep 1000; (sleep 1000); sleep 0\n"
        "echo $(($(date +%s) - a)) $((SECONDS - s)) $((EPOCHSECONDS - e))"
    )

    assert all(2000 <= int(number) <= 2060 for number in result.stdout.split())


def test_date_keeps_fractions_of_a_second(shell: Shell) -> None:
    result = shell.evaluate("a=$(date +%s%3N); sleep 1.75; echo $(($(date +%s%3N) - a))")

    assert int(result.stdout) >= 1750


def test_timeout_ends_longer_sleeps(shell: Shell) -> None:
    assert shell.evaluate("timeout 5 sleep 100").status == 124
    assert shell.evaluate("timeout -k 3 30 bash -c 'while :; do sleep 7; done'").status == 124
    assert shell.evaluate("timeout 5 bash -c 'sleep 4; exit 3'").status == 3


def test_waiting_for_a_process_lets_it_run(shell: Shell) -> None:
    code = (
        "{ /bin/sleep 0.1; echo done; } & pid=$!\n"
        "for try in {1..60}; do kill -0 $pid 2>/dev/null || exit 0; sleep 1; done; exit 9"
    )

    result = shell.evaluate(f"wait_for() {{ {code}\n}}; wait_for")

    assert (result.status, result.stdout) == (0, "done\n")


def test_wrong_duration_fails_as_the_real_sleep_does(shell: Shell) -> None:
    result = shell.evaluate("sleep x")

    assert result.status == 1
    assert "invalid time interval" in result.stderr


def _waits(tmp_path: Path, code: str) -> int:
    """Return how often `code`, which sleeps, lets another process run.

    Each time, the clock reads a line of the descriptor on which nothing comes otherwise.
    """
    for name in ("clock", "log"):
        (tmp_path / name).touch()
    lines = 20
    (tmp_path / "idle").write_text("line\n" * lines)
    script = (
        f"cd {tmp_path}; exec 200<>clock 201<idle 202>>log\n"
        f". {LIBRARY}\n{code}\nmapfile -u 201 left; echo ${{#left[@]}}\n"
    )
    ran = LocalRunner().run(["bash", "-c", script], timeout_s=60.0)
    return lines - int(ran.check("Running the shell code").stdout)


@pytest.mark.parametrize(
    "code",
    [
        "sleep 1; sleep 1",
        "true & wait; sleep 1; sleep 1",
        "true & false & wait; (sleep 1); sleep 1",
    ],
)
def test_sleep_does_not_wait_for_jobs_that_have_ended(tmp_path: Path, code: str) -> None:
    assert _waits(tmp_path, code) == 0


@pytest.mark.parametrize(
    "code",
    [
        "/bin/sleep 60 & sleep 1; sleep 1; kill $!",
        "/bin/sleep 60 & long=$!; true & wait $!; sleep 1; sleep 1; kill $long",
        "/bin/sleep 60 & (sleep 1; sleep 1); kill $!",
    ],
)
def test_sleep_lets_a_running_job_run(tmp_path: Path, code: str) -> None:
    assert _waits(tmp_path, code) == 2
