"""The scripted runner fails for unexpected commands, and for commands that did not run."""

from __future__ import annotations

from contextlib import suppress

import pytest

from harness.shell.mocks.scripted_runner import ScriptedRunner, ScriptViolationError


def test_scripted_commands_answer_in_order() -> None:
    with (
        ScriptedRunner()
        .expect("dkms status", stdout="nvidia/1: added\n")
        .expect(["echo", "a b"], exit_code=3, stderr="no") as runner
    ):
        first = runner.run(("dkms", "status"), timeout_s=1)
        second = runner.run(["echo", "a b"], timeout_s=1)

    assert (first.stdout, first.ok) == ("nvidia/1: added\n", True)
    assert (second.argv, second.exit_code, second.stderr) == (("echo", "a b"), 3, "no")


def test_exit_code_of_a_scripted_command_that_times_out_is_124() -> None:
    with ScriptedRunner().expect("sleep 9", is_timed_out=True) as runner:
        result = runner.run(("sleep", "9"), timeout_s=1)

    assert (result.exit_code, result.timed_out, result.ok) == (124, True, False)


def test_scripted_command_can_be_repeated_and_can_call_an_effect() -> None:
    happened: list[str] = []
    with ScriptedRunner().expect("x", times=2, effect=lambda: happened.append("x")) as runner:
        runner.run(("x",), timeout_s=1)
        runner.run(("x",), timeout_s=1)

    assert happened == ["x", "x"]


def test_unexpected_command_is_refused_with_the_transcript() -> None:
    runner = ScriptedRunner().expect("a").expect("b 'c d'").expect("e")
    runner.run(("a",), timeout_s=1)

    with pytest.raises(ScriptViolationError) as refusal:
        runner.run(("b", "c"), timeout_s=1)

    assert str(refusal.value) == (
        "The command 'b c' is not what the script expects next.\n"
        "--- script\n+++ ran\n@@ -1,3 +1,2 @@\n a\n-b 'c d'\n-e\n+b c\n"
    )


def test_leaving_the_block_fails_if_scripted_commands_did_not_run() -> None:
    script = ScriptedRunner().expect("a").expect("b").expect("c")
    with pytest.raises(ScriptViolationError, match=r"^2 scripted"), script as runner:
        runner.run(("a",), timeout_s=1)


def test_error_of_the_test_takes_precedence_over_scripted_commands_that_did_not_run() -> None:
    with pytest.raises(ZeroDivisionError), ScriptedRunner().expect("a"):
        raise ZeroDivisionError


def test_refusal_that_the_code_under_test_caught_is_raised_again_at_the_end() -> None:
    def forgiving(
        runner: ScriptedRunner, swallowed: type[BaseException], later: type[Exception] | None
    ) -> None:
        with suppress(swallowed):
            runner.run(("b",), timeout_s=1)
        if later is not None:
            raise later

    for swallowed in (Exception, BaseException):
        for later in (None, ZeroDivisionError):
            refused = pytest.raises(ScriptViolationError, match=r"^The command 'b'")
            with refused, ScriptedRunner().expect("a") as runner:
                forgiving(runner, swallowed, later)


def test_every_command_after_a_refusal_is_refused() -> None:
    runner = ScriptedRunner().expect("a")
    with pytest.raises(ScriptViolationError):
        runner.run(("b",), timeout_s=1)

    with pytest.raises(ScriptViolationError, match=r"^The command 'b'"):
        runner.run(("a",), timeout_s=1)


def test_scripted_time_limit_and_environment_and_input_are_compared() -> None:
    calls: list[tuple[float, dict[str, str] | None, str, str]] = [
        (2.0, {"A": "b c"}, "in", "+A='b c' x <<< in  # limit 2 s"),
        (1.0, {"A": "b"}, "in", "+A=b x <<< in  # limit 1 s"),
        (1.0, {"A": "b c"}, "out", "+A='b c' x <<< out  # limit 1 s"),
        (1.0, None, "in", "+x <<< in  # limit 1 s"),
    ]
    for timeout_s, env, stdin, shown in calls:
        runner = ScriptedRunner().expect("x", timeout_s=1, env={"A": "b c"}, stdin="in")

        with pytest.raises(ScriptViolationError) as refusal:
            runner.run(("x",), timeout_s=timeout_s, env=env, stdin=stdin)

        assert f"-A='b c' x <<< in  # limit 1 s\n{shown}\n" in str(refusal.value)


def test_empty_environment_and_empty_input_are_compared() -> None:
    calls: list[tuple[dict[str, str], str]] = [({"A": "b"}, ""), ({}, "in")]
    for env, stdin in calls:
        with ScriptedRunner().expect("x", env={}, stdin="") as runner:
            runner.run(("x",), timeout_s=1, stdin="")

        runner = ScriptedRunner().expect("x", env={}, stdin="")
        with pytest.raises(ScriptViolationError):
            runner.run(("x",), timeout_s=1, env=env, stdin=stdin)
