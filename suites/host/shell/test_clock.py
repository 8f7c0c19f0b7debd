"""Virtual time: all commands that sleep, wait or read the time use the same virtual clock."""

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
def test_virtual_sleeps_are_logged_with_their_duration(
    shell: Shell, code: str, seconds: list[float]
) -> None:
    assert [sleep.seconds for sleep in shell.evaluate(code).check().sleeps] == seconds


def test_virtual_sleep_advances_date_and_the_time_variables_of_bash_equally(shell: Shell) -> None:
    result = shell.evaluate(
        "a=$(date +%s) s=$SECONDS e=$EPOCHSECONDS r=${EPOCHREALTIME%.*}\n"
        "sleep 1000; (sleep 1000); sleep 0\n"
        "echo $(($(date +%s) - a)) $(($(env date -u +%s) - a)) $((SECONDS - s)) "
        "$((EPOCHSECONDS - e)) $((${EPOCHREALTIME%.*} - r))"
    )

    assert all(2000 <= int(number) <= 2060 for number in result.stdout.split())


@pytest.mark.parametrize(
    "words",
    ["-d @86400", "--date @86400", "-u -d@86400", "-r /tmp/f", "--reference=/tmp/f", "-f /tmp/f"],
)
def test_date_with_an_explicit_time_ignores_the_virtual_clock(shell: Shell, words: str) -> None:
    result = shell.evaluate(
        f"echo @86400 >/tmp/f; touch -d @86400 /tmp/f; sleep 1000; date {words} +%s"
    )

    assert result.stdout == "86400\n"


def test_seconds_variable_adds_up_fractions_of_sleeps(shell: Shell) -> None:
    """A loop that sleeps for half a second at a time ends when SECONDS reaches its limit."""
    result = shell.evaluate(
        "SECONDS=0 n=0; while ((SECONDS < 50 && n++ < 200)); do sleep 0.5; done; echo $n"
    )

    assert int(result.stdout) <= 100


def test_virtual_sleep_advances_date_by_fractions_of_a_second(shell: Shell) -> None:
    result = shell.evaluate("a=$(date +%s%3N); sleep 1.75; echo $(($(date +%s%3N) - a))")

    assert int(result.stdout) >= 1750


_LOOPS = "while :; do sleep 2; done"
_CLEANS_UP = "trap 'sleep 3; exit 9' TERM; sleep 30"
_SCRIPT = "timeout 5 sleep 30; sleep $1; exit 3"


@pytest.mark.parametrize(
    ("code", "status", "at_s"),
    [
        # Two deadlines: the earlier deadline ends the command.
        ("timeout 100 timeout 5 sleep 30", 124, 5),
        ("timeout 5 timeout 100 sleep 30", 124, 5),
        ('timeout 100 bash -c "$SCRIPT" - 10', 3, 15),
        ('timeout 100 bash -c "$SCRIPT" - 200', 124, 100),
        ('echo "$SCRIPT" >/tmp/s.sh; timeout 9 sh /tmp/s.sh 6', 124, 9),
        ("timeout 9 bash -c 'timeout 5 sleep 4; sleep 6'", 124, 9),
        ("timeout 10 timeout 0 sleep 30", 124, 10),
        ("timeout 0 timeout 10 sleep 30", 124, 10),
        # A limit begins when its command starts, and applies only to this command.
        ("sleep 60; timeout 5 sleep 30; timeout 5 sleep 4", 0, 69),
        ("timeout 5 true; sleep 30", 0, 30),
        ("f() { timeout 5 sleep 30; }; f; (timeout 5 sleep 30)", 124, 10),
        ("timeout 5 sleep 30 & wait $!", 124, 5),
        ("timeout 7 sleep 30 & wait $!; timeout 5 bash -c 'exit 3'", 3, 7),
        # Durations of limits: fractions and units.
        ("timeout 0 sleep 30", 0, 30),
        ("timeout 0.5 sleep 0.499", 0, 0.499),
        ("timeout 0.5 sleep 30", 124, 0.5),
        ("timeout .25m sleep 15.001s", 124, 15),
        ("timeout 2m sleep 119", 0, 119),
        ("timeout 1.5h sleep 2h", 124, 5400),
        ("timeout 1d sleep 2d", 124, 86400),
        # Options, some with the value in a separate word.
        ("timeout --foreground 5 sleep 30", 124, 5),
        ("timeout -s INT 5 sleep 30", 124, 5),
        ("timeout --preserve-status --signal 2 5 sleep 30", 130, 5),
        ("timeout -k 3 5 sleep 30", 124, 5),
        ("timeout --kill-after 3 -- 5 sleep 30", 124, 5),
        # Time that a command may take to clean up after the signal.
        ('timeout 5 bash -c "$CLEANS_UP"', 124, 8),
        ('timeout --preserve-status -k 4 5 bash -c "$CLEANS_UP"', 9, 8),
        ('timeout -k 2 5 bash -c "$CLEANS_UP"', 137, 7),
        ('timeout -k3 5 bash -c "trap : TERM; $LOOPS"', 137, 8),
        ('timeout --kill-after=0.1m 5 bash -c "trap : TERM; $LOOPS"', 137, 11),
        ('timeout -k 1 50 timeout -k 4 5 bash -c "$CLEANS_UP"', 124, 8),
    ],
)
def test_timeout_ends_a_command_that_sleeps_too_long(
    shell: Shell, code: str, status: int, at_s: float
) -> None:
    """The virtual timeout ends commands at the same time and in the same way as the real one."""
    env = {"LOOPS": _LOOPS, "CLEANS_UP": _CLEANS_UP, "SCRIPT": _SCRIPT}
    result = shell.evaluate(f"{code}\nstatus=$?; sleep 0; exit $status", env=env)

    assert (result.status, result.sleeps[-1].at_s) == (status, at_s)


def test_expired_timeout_of_a_background_job_does_not_set_the_virtual_clock_back(
    shell: Shell,
) -> None:
    code = (
        "timeout 5 bash -c ': >/tmp/begun; until [ -e /tmp/go ]; do :; done; sleep 30' &\n"
        "until [ -e /tmp/begun ]; do :; done; sleep 100; : >/tmp/go; wait $!"
    )
    result = shell.evaluate(f"{code}; status=$?; sleep 0; exit $status")

    assert (result.status, result.sleeps[-1].at_s) == (124, 100)


def test_process_makes_progress_while_a_loop_with_virtual_sleeps_waits_for_it(
    shell: Shell,
) -> None:
    code = (
        "{ /bin/sleep 0.1; echo done; } & pid=$!\n"
        "for try in {1..60}; do kill -0 $pid 2>/dev/null || exit 0; sleep 1; done; exit 9"
    )

    result = shell.evaluate(f"wait_for() {{ {code}\n}}; wait_for")

    assert (result.status, result.stdout) == (0, "done\n")


def test_invalid_duration_fails_like_the_real_sleep(shell: Shell) -> None:
    result = shell.evaluate("sleep x")

    assert result.status == 1
    assert "invalid time interval" in result.stderr


def _waits(tmp_path: Path, code: str) -> int:
    """Run code that sleeps, and return how often its sleeps let another process run.

    The virtual clock waits by a read from descriptor 201; here each wait reads one line of a file.
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
def test_virtual_sleep_waits_in_real_time_while_a_background_job_runs(
    tmp_path: Path, code: str
) -> None:
    assert _waits(tmp_path, code) == 2
