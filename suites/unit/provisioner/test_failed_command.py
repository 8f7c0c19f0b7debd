"""The record of the command at which `set -e` ended a provisioner, and who writes the record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.cloudinit import GuestFile
from harness.provisioner import Provisioner
from harness.provisioner.failed_command import FailedCommand, parse_failed_command

MAIN = "/opt/mine/main"
NOTED = ("env", "BASH_ENV=/run/gpu-node-failed-command.bash")


def a_provisioner(main: str, library: str = "", *argv: str) -> Provisioner:
    files = [
        GuestFile(path=MAIN, content=main.encode(), mode=0o755),
        GuestFile(path="/opt/mine/lib", content=library.encode()),
    ]
    return Provisioner(name="mine", run=argv or [MAIN, "boot"], files=files)


def is_noted(provisioner: Provisioner) -> bool:
    argv = provisioner.guest_command("boot")
    return any(argv[place : place + 2] == NOTED for place in range(len(argv)))


@pytest.mark.parametrize(
    "shebang",
    ["#!/bin/bash", "#!/usr/bin/env bash", "#! /usr/bin/bash -eu", "#!/usr/bin/env -S bash -e"],
)
def test_bash_script_gets_a_trap_that_records_the_failed_command(shebang: str) -> None:
    provisioner = a_provisioner(f"{shebang}\nmain\n")

    assert is_noted(provisioner)
    assert provisioner.guest_command("boot")[-4:] == (*NOTED, MAIN, "boot")


@pytest.mark.parametrize("shebang", ["#!/bin/sh", "# bash"])
def test_program_that_is_no_bash_script_gets_no_err_trap(shebang: str) -> None:
    assert not is_noted(a_provisioner(f"{shebang}\nmain\n"))


def test_script_is_a_bash_script_if_the_declared_shell_is_bash() -> None:
    assert is_noted(a_provisioner("main\n", "", "bash", MAIN))
    assert is_noted(a_provisioner("main\n", "", "/bin/bash", "-eu", MAIN))
    assert not is_noted(a_provisioner("#!/bin/bash\n", "", "sh", MAIN))
    assert not is_noted(a_provisioner("#!/bin/bash\n", "", "/opt/nobash", MAIN))
    assert not is_noted(a_provisioner("#!/bin/bash\n", "", "/opt/of-the-image"))


@pytest.mark.parametrize(
    "own",
    [
        "trap 'failed $LINENO' ERR\n",
        "  trap failed EXIT ERR # both\n",
        "trap failed err\n",
        "trap '\n  failed\n' ERR\n",
        "trap \\\n  failed ERR\n",
        "old=$(trap -p ERR)\n",
        "traps=$(trap)\n",
        "trap\n",
        "export BASH_ENV=/etc/ours\n",
    ],
)
def test_script_with_an_err_trap_of_its_own_gets_no_trap(own: str) -> None:
    assert not is_noted(a_provisioner("#!/bin/bash\n" + own))
    assert not is_noted(a_provisioner("#!/bin/bash\n", own))


@pytest.mark.parametrize("line", ["trap clean EXIT\n", "log ERR 'no mirror'\n", "say 'a trap'\n"])
def test_script_without_an_err_trap_of_its_own_gets_a_trap(line: str) -> None:
    assert is_noted(a_provisioner("#!/bin/bash\n" + line))


def test_declared_bash_env_is_not_overridden() -> None:
    provisioner = replace(a_provisioner("#!/bin/bash\n"), environment={"BASH_ENV": "", "A": "b"})

    assert provisioner.guest_command("boot")[-5:] == ("env", "BASH_ENV=", "A=b", MAIN, "boot")


def test_record_of_a_failed_command_is_parsed() -> None:
    assert parse_failed_command("7\n26\n/opt/lib.sh\nx <<END\ntext\nEND\n") == FailedCommand(
        command="x <<END\ntext\nEND", exit_code=7, file="/opt/lib.sh", line=26
    )


@pytest.mark.parametrize("text", ["", "1\n2\n/x", "a\n2\n/x\ny\n", "1\n-2\n/x\ny\n"])
def test_damaged_record_of_a_failed_command_is_parsed_as_none(text: str) -> None:
    assert parse_failed_command(text) is None
