"""Which processes of a guest have a device open."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from harness.machine.channels.guest import USERS, Guest
from harness.shell.mocks.scripted_runner import ScriptedRunner


def test_error_is_raised_if_the_guest_cannot_list_the_processes_that_use_a_file() -> None:
    with (
        ScriptedRunner().expect(
            ["sh", "-c", USERS, "users", "/dev/nvidia[0-9]*"],
            exit_code=1,
            stderr="there is no 'find' in the guest",
        ) as runner,
        pytest.raises(HarnessError, match="no 'find'"),
    ):
        Guest("node", runner).users_of("/dev/nvidia[0-9]*")


def test_process_is_listed_once_if_its_name_has_tabs_and_the_path_has_blanks() -> None:
    with ScriptedRunner().expect(
        ["sh", "-c", USERS, "users", "/mnt/*"], stdout="7\t/mnt/a file\todd\tname\n" * 2
    ) as runner:
        users = Guest("node", runner).users_of("/mnt/*")

    assert users == ["'odd\tname' (PID 7) has '/mnt/a file' open"]


def test_malformed_line_in_the_list_of_processes_is_an_error() -> None:
    """The path of an open file may contain a line break."""
    for line in ("7\t/dev/nvidia0x", "x"):
        script = ScriptedRunner().expect(
            ["sh", "-c", USERS, "users", "/dev/nvidia0"], stdout=f"7\t/dev/nvidia0\tcat\n{line}\n"
        )
        with (
            script as runner,
            pytest.raises(HarnessError, match="has a line of an unknown format"),
        ):
            Guest("node", runner).users_of("/dev/nvidia0")
