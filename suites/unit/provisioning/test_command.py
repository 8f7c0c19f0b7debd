"""Reports of commands and of their results; tests in `suites/host` run real commands."""

from __future__ import annotations

import pytest

from harness.provisioning.command import CommandError, CommandResult, argv_refusal


def test_command_that_is_not_a_list_of_strings_is_refused_with_the_reason() -> None:
    rows: tuple[tuple[object, str], ...] = (
        ("", "'' is a string, but a command is a list of words; write [], or ['sh', '-c', '']"),
        ("a  b", "'a  b' is a string, but a command is a list of words; write ['a', 'b'], or"),
        (b"true", "b'true' is no command; write a list of words"),
        (None, "None is no command; write a list of words"),
        ({"a": 1}, "{'a': 1} is no command; write a list of words"),
        ([], "A command has at least one word, its program, but this list is empty."),
        ((), "A command has at least one word, its program, but this list is empty."),
        ([1, "x"], "Each word of a command is a string, but 1 is not; write str(…)."),
        (["x", None, 2], "Each word of a command is a string, but None is not; write str(…)."),
    )

    for argv, words in rows:
        assert (argv_refusal(argv) or "").startswith(words), argv
    assert [argv_refusal(argv) for argv in (["true"], ("true", ""), [""])] == [None, None, None]


def result(**fields: object) -> CommandResult:
    values: dict[str, object] = {
        "argv": ("ls", "a b"),
        "exit_code": 0,
        "stdout": "",
        "stderr": "",
        **fields,
    }
    return CommandResult(**values)  # type: ignore[arg-type]


def test_report_says_how_a_command_ended() -> None:
    killed = "exit code: -9 (killed, since its output exceeded the limit), after 0.0 s"
    rows = {
        result(exit_code=2, duration_s=1.26): "exit code: 2, after 1.3 s",
        result(exit_code=124): "exit code: 124, after 0.0 s",
        result(exit_code=124, timed_out=True): "exit code: 124 (time limit), after 0.0 s",
        result(exit_code=-9, wrote_too_much=True): killed,
        result(exit_code=-9, wrote_too_much=True, timed_out=True): killed,
    }

    assert {each: each.render().splitlines() for each in rows} == {
        each: ["command: ls 'a b'", line, "stdout: -", "stderr: -"] for each, line in rows.items()
    }


def test_report_has_the_beginning_of_the_command_and_the_end_of_each_output() -> None:
    text = result(argv=("ls", "x" * 20), stdout="1234567890\n", stderr=" abcdefghij").render(10)

    assert text.splitlines() == [
        "command: ls xxxxxxx [13 more characters are left out]",
        "exit code: 0, after 0.0 s",
        "stdout: [1 earlier characters are left out] 234567890",
        "stderr: [1 earlier characters are left out] abcdefghij",
    ]
    assert "left out" not in result(argv=("ls",), stdout="1234567890", stderr="x" * 9).render(10)


def test_command_is_ok_only_if_it_exited_with_0_and_its_output_is_complete() -> None:
    seen = result()
    assert seen.ok
    assert seen.check("Listing") is seen

    for failed in (result(wrote_too_much=True), result(exit_code=1), result(exit_code=-15)):
        assert not failed.ok
        with pytest.raises(CommandError, match=r"^Listing failed\.\ncommand: ls") as error:
            failed.check("Listing")
        assert (error.value.purpose, error.value.result) == ("Listing", failed)


def test_message_of_a_failed_command_mentions_the_file_with_the_whole_output() -> None:
    error = CommandError("Listing", result(exit_code=1, stdout="x" * 3000))
    error.name_file("/var/log/whole")

    assert "[500 earlier characters are left out]" in str(error)
    assert str(error).endswith("\nThe whole output is in '/var/log/whole'.")
    assert "x" * 3000 in error.whole
    assert "left out" not in error.whole
