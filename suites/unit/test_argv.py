"""A command is a list of words: strings are refused, by the type checker and when they are given.

Each `type: ignore` here proves that the checker refuses the line: an unused comment is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.cloudinit import UserData
from harness.errors import BadInputError
from harness.machine.channels.guest import Guest
from harness.provisioning.command import LocalRunner
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.unit.lab.builders import a_request

if TYPE_CHECKING:
    from harness.provisioning.command import Argv


def test_string_in_place_of_a_command_is_refused_with_the_field_name() -> None:
    with pytest.raises(BadInputError) as caught:
        a_request(before=[["true"], "touch /run/x"])

    assert str(caught.value) == (
        "NodeRequest: key 'before[1]': 'touch /run/x' is a string, but a command is a list of "
        "words; write ['touch', '/run/x'], or ['sh', '-c', 'touch /run/x'] for a line of shell code."
    )


@pytest.mark.parametrize(
    ("before", "sentence"),
    [
        ("touch /run/x", "key 'before': 'touch /run/x' is not a list of commands"),
        (("touch", "/run/x"), "key 'before[0]': 'touch' is a string"),
        ([[]], "key 'before[0]': A command has at least one word"),
        ([["sleep", 5]], "key 'before[0]': Each word of a command is a string, but 5 is not"),
        ([None], "key 'before[0]': None is no command"),
        (None, "key 'before': None is not a list of commands"),
    ],
)
def test_value_that_is_not_a_list_of_commands_is_refused(before: object, sentence: str) -> None:
    with pytest.raises(BadInputError) as caught:
        a_request(before=before)

    assert sentence in str(caught.value)


@pytest.mark.parametrize("before", [(), [("touch", "/run/x")], (["sh", "-c", "a b"],)])
def test_lists_and_tuples_of_words_are_accepted_as_commands(before: object) -> None:
    assert a_request(before=before).before == before


def test_type_checker_refuses_a_string_among_commands() -> None:
    good: list[Argv] = [["touch", "/run/x"], ("true",)]
    bad: list[Argv] = ["touch /run/x"]  # type: ignore[list-item]

    assert UserData(hostname="a", commands=good).commands == good
    assert UserData(hostname="a", commands=["touch /run/x"]).commands == bad  # type: ignore[list-item]


def test_runner_refuses_a_string_in_place_of_a_command() -> None:
    with pytest.raises(TypeError, match=r"argv: 'true' is a string, but a command is a list"):
        LocalRunner().run("true", timeout_s=1)  # type: ignore[arg-type]


def test_scripted_runner_refuses_a_string_in_place_of_a_list() -> None:
    runner = ScriptedRunner()
    runner.expect("l s")

    with pytest.raises(TypeError, match=r"argv: 'ls' is a string"):
        runner.run("ls", timeout_s=1)  # type: ignore[arg-type]


def test_guest_run_refuses_a_list_in_place_of_a_word() -> None:
    guest = Guest("node", LocalRunner())

    with pytest.raises(TypeError, match=r"but \['touch', '/run/x'\] is not"):
        guest.run(["touch", "/run/x"])  # type: ignore[arg-type]
