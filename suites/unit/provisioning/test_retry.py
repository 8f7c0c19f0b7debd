"""Retries of commands within the time budget of the node."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.exit_codes import ExitCode
from harness.provisioning.plan import PermanentFailure, Retry, Run
from harness.provisioning.retry import CLEANUP_TIMEOUT_S, StepFailedError, try_command
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.fakes.clock import FakeClock

from .fakes import make_node

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import CommandResult
    from harness.provisioning.node_context import NodeContext


def command(attempts: int = 1, *, timeout_s: float = 30, **changes: object) -> Run:
    retry = Retry(attempts=attempts, pause_s=5, timeout_s=timeout_s)
    return Run(argv=("work", "hard"), retry=retry, **changes)  # type: ignore[arg-type]


def test_command_that_succeeds_is_tried_once_and_not_cleaned_up(tmp_path: Path) -> None:
    clock = FakeClock()
    run = command(3, judge=_judge, cleanup=(("kill", "it"),))
    with ScriptedRunner().expect("work hard", timeout_s=30, env={}, stdout="fine") as runner:
        assert try_command(make_node(runner, tmp_path, clock), run) is None

    assert clock.sleeps == []


def test_failed_command_is_tried_again_after_a_pause(tmp_path: Path) -> None:
    clock = FakeClock()
    with ScriptedRunner().expect("work hard", exit_code=1, times=2).expect("work hard") as runner:
        detail = try_command(make_node(runner, tmp_path, clock), command(3))

    assert detail == "Succeeded on attempt 3."
    assert clock.sleeps == [5, 5]


def test_last_failure_is_reported_with_its_output_and_without_a_pause(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    with (
        ScriptedRunner()
        .expect("work hard", exit_code=1, stderr="first")
        .expect("work hard", exit_code=2, stdout="out", stderr="second") as runner,
        pytest.raises(StepFailedError) as failure,
    ):
        try_command(make_node(runner, tmp_path, clock), command(2))

    assert str(failure.value) == (
        "command: work hard\nexit code: 2, after 0.0 s\nstdout: out\nstderr: second"
    )
    assert failure.value.exit_code is None
    assert clock.sleeps == [5]


def test_each_try_is_limited_to_the_remaining_budget(tmp_path: Path) -> None:
    clock = FakeClock()
    with (
        ScriptedRunner()
        .expect("work hard", timeout_s=40, exit_code=1, effect=lambda: clock.advance(40))
        .expect(
            "work hard", timeout_s=15, exit_code=1, effect=lambda: clock.advance(11)
        ) as runner,
        pytest.raises(StepFailedError) as failure,
    ):
        try_command(make_node(runner, tmp_path, clock, budget_s=60), command(9, timeout_s=40))

    assert clock.sleeps == [5, 4]
    assert str(failure.value) == (
        "The time budget of the node is used up. "
        "command: work hard\nexit code: 1, after 0.0 s\nstdout: -\nstderr: -"
    )


def test_error_of_the_previous_attempt_is_reported_if_the_budget_cuts_off_the_last_attempt(
    tmp_path: Path,
) -> None:
    """The second attempt has one second left and may fail without a useful message."""
    for is_timed_out in (True, False):
        clock = FakeClock()
        with (
            ScriptedRunner()
            .expect(
                "work hard",
                exit_code=3,
                stderr="no headers",
                effect=functools.partial(clock.advance, 54),
            )
            .expect(
                "work hard",
                timeout_s=1,
                exit_code=4,
                is_timed_out=is_timed_out,
                effect=functools.partial(clock.advance, 1),
            ) as runner,
            pytest.raises(StepFailedError) as failure,
        ):
            try_command(make_node(runner, tmp_path, clock, budget_s=60), command(9, timeout_s=60))

        assert clock.sleeps[0] == 5
        assert str(failure.value) == (
            "The time budget of the node was used up during attempt 2. Attempt 1 failed too: "
            "command: work hard\nexit code: 3, after 0.0 s\nstdout: -\nstderr: no headers"
            if is_timed_out
            else "The time budget of the node is used up. "
            "command: work hard\nexit code: 4, after 0.0 s\nstdout: -\nstderr: -"
        )


def test_failure_of_a_first_try_that_the_budget_cuts_off_is_reported(tmp_path: Path) -> None:
    clock = FakeClock()
    with (
        ScriptedRunner().expect(
            "work hard", timeout_s=60, is_timed_out=True, effect=lambda: clock.advance(60)
        ) as runner,
        pytest.raises(StepFailedError) as failure,
    ):
        try_command(make_node(runner, tmp_path, clock, budget_s=60), command(9, timeout_s=90))

    assert str(failure.value).startswith(
        "The time budget of the node is used up. command: work hard\nexit code: 124"
    )


def test_attempt_that_reaches_its_own_limit_is_followed_by_another_attempt(tmp_path: Path) -> None:
    clock = FakeClock()
    with (
        ScriptedRunner()
        .expect("work hard", exit_code=1)
        .expect("work hard", is_timed_out=True, effect=lambda: clock.advance(10))
        .expect("work hard") as runner
    ):
        detail = try_command(
            make_node(runner, tmp_path, clock, budget_s=60), command(9, timeout_s=10)
        )

    assert detail == "Succeeded on attempt 3."


def test_growing_time_limit_doubles_after_each_timeout_up_to_the_maximum(
    tmp_path: Path,
) -> None:
    """On an overloaded node, no attempt with the first limit could succeed."""
    growing = Retry(attempts=20, pause_s=1, timeout_s=2, max_timeout_s=8)
    for multiplier in (1, 3):
        clock = FakeClock()
        runner = ScriptedRunner().expect("work hard", timeout_s=2, exit_code=1)
        for limit_s in (2, 4, 8, 8, 8, 8):
            runner.expect(
                "work hard",
                timeout_s=limit_s,
                is_timed_out=True,
                effect=functools.partial(clock.advance, limit_s * multiplier),
            )
        node = replace(make_node(runner, tmp_path, clock), time_limit_multiplier=multiplier)

        with runner, pytest.raises(StepFailedError, match="time limit"):
            try_command(node, Run(argv=("work", "hard"), retry=growing))

        assert clock.sleeps == [1] * 6


def test_failed_attempt_that_took_longer_than_the_first_limit_counts_as_several_attempts(
    tmp_path: Path,
) -> None:
    growing = Retry(attempts=6, pause_s=1, timeout_s=2, max_timeout_s=8)
    clock = FakeClock()
    runner = ScriptedRunner().expect(
        "work hard", timeout_s=2, is_timed_out=True, effect=lambda: clock.advance(2)
    )
    runner.expect("work hard", timeout_s=4, exit_code=1, effect=lambda: clock.advance(4), times=2)
    runner.expect("work hard", timeout_s=4, exit_code=1, effect=lambda: clock.advance(1))

    with runner, pytest.raises(StepFailedError):
        try_command(make_node(runner, tmp_path, clock), Run(argv=("work", "hard"), retry=growing))


def test_limit_does_not_grow_after_an_attempt_that_fails_in_time(
    tmp_path: Path,
) -> None:
    growing = Retry(attempts=3, pause_s=1, timeout_s=2, max_timeout_s=8)
    with (
        ScriptedRunner()
        .expect("work hard", timeout_s=2, exit_code=1, times=2)
        .expect("work hard", timeout_s=2) as runner
    ):
        detail = try_command(
            make_node(runner, tmp_path, FakeClock()), Run(argv=("work", "hard"), retry=growing)
        )

    assert detail == "Succeeded on attempt 3."


def test_no_command_starts_after_the_budget_is_spent(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError) as failure, ScriptedRunner() as runner:
        try_command(make_node(runner, tmp_path, budget_s=0), command())

    assert (
        str(failure.value)
        == "The time budget of the node is used up. The command was not started."
    )


def test_cleanup_is_run_after_each_failed_try_even_if_the_budget_is_spent(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    run = command(2, cleanup=(("kill", "it"), ("remove", "it")))
    with (
        ScriptedRunner()
        .expect("work hard", is_timed_out=True, effect=lambda: clock.advance(100))
        .expect("kill it", timeout_s=CLEANUP_TIMEOUT_S, exit_code=1)
        .expect("remove it", timeout_s=CLEANUP_TIMEOUT_S) as runner,
        pytest.raises(StepFailedError),
    ):
        try_command(make_node(runner, tmp_path, clock, budget_s=60), run)


def test_cleanup_is_run_after_a_try_that_a_signal_ends(tmp_path: Path) -> None:
    """The signal ends the command's own processes, but not the processes in the command's container."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with (
        ScriptedRunner()
        .expect("work hard", effect=interrupt)
        .expect("kill it", timeout_s=CLEANUP_TIMEOUT_S) as runner,
        pytest.raises(KeyboardInterrupt),
    ):
        try_command(make_node(runner, tmp_path), command(2, cleanup=(("kill", "it"),)))


def test_program_that_is_not_on_path_is_run_from_its_fallback_path(tmp_path: Path) -> None:
    with (
        ScriptedRunner()
        .expect("work hard", timeout_s=20, env={"A": "b"}, exit_code=127)
        .expect("/opt/work hard", timeout_s=20, env={"A": "b"}) as runner
    ):
        run = command(fallback_program="/opt/work", env=(("A", "b"),))
        assert try_command(make_node(runner, tmp_path, budget_s=20), run) is None


def test_fallback_program_is_run_only_in_place_of_a_missing_program(tmp_path: Path) -> None:
    for exit_code, run in ((126, command(fallback_program="/opt/work")), (127, command())):
        with (
            ScriptedRunner().expect("work hard", exit_code=exit_code) as runner,
            pytest.raises(StepFailedError),
        ):
            try_command(make_node(runner, tmp_path), run)


def test_failure_of_an_optional_command_is_returned_and_its_warning_is_printed(
    tmp_path: Path,
) -> None:
    ignored = "Ignored: command: work hard\nexit code: 1, after 0.0 s\nstdout: -\nstderr: -"
    for warning, told in ((None, ignored), ("warning: no", "warning: no")):
        console: list[str] = []
        with ScriptedRunner().expect("work hard", exit_code=1) as runner:
            run = command(is_optional=True, warning=warning)
            detail = try_command(make_node(runner, tmp_path, console=console), run)

        assert detail == told
        assert console == ([] if warning is None else [warning])


def _judge(node: NodeContext, result: CommandResult) -> PermanentFailure | None:
    assert node.clock is not None
    if "hopeless" in result.stdout:
        return PermanentFailure(
            message="It is hopeless.", exit_code=ExitCode.GPU_INFO_ROM_CORRUPTED
        )
    return None


def test_verdict_of_the_judge_ends_the_tries_with_the_exit_code_of_the_verdict(
    tmp_path: Path,
) -> None:
    for exit_code in (0, 1):
        clock = FakeClock()
        run = command(9, judge=_judge, cleanup=(("tidy", "up"),))
        with (
            ScriptedRunner()
            .expect("work hard", stdout="busy", exit_code=1)
            .expect("tidy up")
            .expect("work hard", stdout="hopeless", exit_code=exit_code)
            .expect("tidy up") as runner,
            pytest.raises(StepFailedError) as failure,
        ):
            try_command(make_node(runner, tmp_path, clock), run)

        assert failure.value.exit_code is ExitCode.GPU_INFO_ROM_CORRUPTED
        assert str(failure.value) == (
            f"It is hopeless.\ncommand: work hard\nexit code: {exit_code}, after 0.0 s\n"
            "stdout: hopeless\nstderr: -"
        )
        assert clock.sleeps == [5]
