"""The record of the command at which `set -e` ended a provisioner, and who writes the record."""

from __future__ import annotations

from dataclasses import replace

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


def test_only_a_bash_script_gets_a_trap_that_records_the_failed_command() -> None:
    for shebang in (
        "#!/bin/bash",
        "#!/usr/bin/env bash",
        "#! /usr/bin/bash -eu",
        "#!/usr/bin/env -S bash -e",
    ):
        argv = a_provisioner(f"{shebang}\nmain\n").guest_command("boot")
        assert argv[-4:] == (*NOTED, MAIN, "boot"), shebang
    for shebang in ("#!/bin/sh", "# bash"):
        assert not is_noted(a_provisioner(f"{shebang}\nmain\n")), shebang


def test_script_is_a_bash_script_if_the_declared_shell_is_bash() -> None:
    assert is_noted(a_provisioner("main\n", "", "bash", MAIN))
    assert is_noted(a_provisioner("main\n", "", "/bin/bash", "-eu", MAIN))
    assert not is_noted(a_provisioner("#!/bin/bash\n", "", "sh", MAIN))
    assert not is_noted(a_provisioner("#!/bin/bash\n", "", "/opt/nobash", MAIN))
    assert not is_noted(a_provisioner("#!/bin/bash\n", "", "/opt/of-the-image"))


def test_bash_script_that_sets_an_err_trap_gets_no_trap_of_the_harness() -> None:
    for own in (
        "trap 'failed $LINENO' ERR\n",
        "  trap failed EXIT ERR # both\n",
        "trap failed err\n",
        "trap '\n  failed\n' ERR\n",
        "trap \\\n  failed ERR\n",
        "old=$(trap -p ERR)\n",
        "traps=$(trap)\n",
        "trap\n",
        "export BASH_ENV=/etc/ours\n",
    ):
        assert not is_noted(a_provisioner("#!/bin/bash\n" + own)), own
        assert not is_noted(a_provisioner("#!/bin/bash\n", own)), own
    for line in ("trap clean EXIT\n", "log ERR 'no mirror'\n", "say 'a trap'\n"):
        assert is_noted(a_provisioner("#!/bin/bash\n" + line)), line


def test_declared_bash_env_is_not_overridden() -> None:
    provisioner = replace(a_provisioner("#!/bin/bash\n"), environment={"BASH_ENV": "", "A": "b"})

    assert provisioner.guest_command("boot")[-5:] == ("env", "BASH_ENV=", "A=b", MAIN, "boot")


def test_damaged_record_of_a_failed_command_is_parsed_as_none() -> None:
    assert parse_failed_command("7\n26\n/opt/lib.sh\nx <<END\ntext\nEND\n") == FailedCommand(
        command="x <<END\ntext\nEND", exit_code=7, file="/opt/lib.sh", line=26
    )
    damaged = ("", "1\n2\n/x", "a\n2\n/x\ny\n", "1\n-2\n/x\ny\n")
    assert [parse_failed_command(text) for text in damaged] == [None] * 4
