"""Reports of commands and of their results; tests in `suites/host` run real commands."""

from __future__ import annotations

import pytest

from harness.provisioning.command import CommandError, CommandResult, argv_refusal


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["true"], None),
        (("true", ""), None),
        ([""], None),
        ("", "'' is a string, but a command is a list of words; write [], or ['sh', '-c', '']"),
        ("a  b", "'a  b' is a string, but a command is a list of words; write ['a', 'b'], or ['sh', '-c', 'a  b']"),
        (b"true", "b'true' is no command; write a list of words"),
        (None, "None is no command; write a list of words"),
        ({"a": 1}, "{'a': 1} is no command; write a list of words"),
        ([], "A command has at least one word, its program, but this list is empty."),
        ((), "A command has at least one word, its program, but this list is empty."),
        ([1, "x"], "Each word of a command is a string, but 1 is not; write str(…)."),
        (["x", None, 2], "Each word of a command is a string, but None is not; write str(…)."),
    ],
)  # fmt: skip
def test_command_that_is_not_a_list_of_strings_is_refused_with_the_reason(
    argv: object, told: str | None
) -> None:
    refusal = argv_refusal(argv)

    assert (refusal is None) == (told is None)
    assert (refusal or "").startswith(told or "")


def result(**fields: object) -> CommandResult:
    values: dict[str, object] = {
        "argv": ("ls", "a b"),
        "exit_code": 0,
        "stdout": "",
        "stderr": "",
        **fields,
    }
    return CommandResult(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"exit_code": 2, "duration_s": 1.26}, "exit code: 2, after 1.3 s"),
        ({"exit_code": 124}, "exit code: 124, after 0.0 s"),
        ({"exit_code": 124, "timed_out": True}, "exit code: 124 (time limit), after 0.0 s"),
        (
            {"exit_code": -9, "wrote_too_much": True},
            "exit code: -9 (killed, since its output exceeded the limit), after 0.0 s",
        ),
        (
            {"exit_code": -9, "wrote_too_much": True, "timed_out": True},
            "exit code: -9 (killed, since its output exceeded the limit), after 0.0 s",
        ),
    ],
)
def test_report_says_how_a_command_ended(fields: dict[str, object], line: str) -> None:
    assert result(**fields).render().splitlines() == [
        "command: ls 'a b'",
        line,
        "stdout: -",
        "stderr: -",
    ]


def test_report_has_the_beginning_of_the_command_and_the_end_of_each_output() -> None:
    text = result(argv=("ls", "x" * 20), stdout="1234567890\n", stderr=" abcdefghij").render(10)

    assert text.splitlines() == [
        "command: ls xxxxxxx [13 characters after are left out]",
        "exit code: 0, after 0.0 s",
        "stdout: [1 characters before are left out] 234567890",
        "stderr: [1 characters before are left out] abcdefghij",
    ]
    assert result(argv=("ls",), stdout="1234567890", stderr="x" * 9).render(10).splitlines() == [
        "command: ls",
        "exit code: 0, after 0.0 s",
        "stdout: 1234567890",
        "stderr: xxxxxxxxx",
    ]


@pytest.mark.parametrize(
    ("exit_code", "wrote_too_much", "is_ok"),
    [(0, False, True), (0, True, False), (1, False, False), (-15, False, False)],
)
def test_command_is_ok_only_if_it_exited_with_0_and_its_output_is_complete(
    exit_code: int, *, wrote_too_much: bool, is_ok: bool
) -> None:
    seen = result(exit_code=exit_code, wrote_too_much=wrote_too_much)

    assert seen.ok is is_ok
    if is_ok:
        assert seen.check("Listing") is seen
        return
    with pytest.raises(CommandError, match=r"^Listing failed\.\ncommand: ls") as error:
        seen.check("Listing")
    assert error.value.purpose == "Listing"
    assert error.value.result is seen


def test_message_of_a_failed_command_mentions_the_file_with_the_whole_output() -> None:
    error = CommandError("Listing", result(exit_code=1, stdout="x" * 3000))
    error.name_file("/var/log/whole")

    assert "[500 characters before are left out]" in str(error)
    assert str(error).endswith("\nThe whole output is in '/var/log/whole'.")
    assert "x" * 3000 in error.whole
    assert "left out" not in error.whole
