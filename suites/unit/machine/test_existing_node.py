"""Commands on an existing node: its URI, the options of ssh, and the accepted answers."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.limits import LimitError
from harness.machine.existing_node import NodeAddress, NodeRunner
from harness.provisioning.command import CommandResult
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.fakes.ssh import FakeSsh

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import Argv

ADDRESS = NodeAddress(host="box")


def test_uri_has_the_address_of_the_node() -> None:
    addresses = {
        "local:": NodeAddress(),
        "local:/": NodeAddress(),
        "ssh://box": NodeAddress(host="box"),
        "ssh://box/": NodeAddress(host="box"),
        "ssh://root@box.lab:2222": NodeAddress(host="box.lab", user="root", port=2222),
        "ssh://[fe80::1%25eth0]:22": NodeAddress(host="fe80::1%eth0", port=22),
        "ssh://10.0.0.7": NodeAddress(host="10.0.0.7"),
        "ssh://Admin@box": NodeAddress(host="box", user="Admin"),
        "ssh://box?timeout=60": NodeAddress(host="box", connect_s=60),
        "ssh://me@box?sudo=yes": NodeAddress(host="box", user="me", by_sudo=True),
    }

    assert {
        uri: NodeAddress.from_uri(uri, source="--machine-uri") for uri in addresses
    } == addresses


def test_uri_can_contain_the_path_of_an_ssh_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "ssh config"
    config.write_text("")

    address = NodeAddress.from_uri(f"ssh://box?config={tmp_path}/ssh%20config", source="URI")

    assert address.config == config
    assert NodeAddress.from_uri("ssh://box?config=ssh%20config", source="URI") == address
    assert address.ssh_argv()[1:3] == ["-F", str(config)]


def test_error_for_an_invalid_node_uri_shows_the_valid_forms() -> None:
    for uri, why in (
        ("box", "it is not 'local:', and its scheme is not 'ssh'"),
        ("http://box", "it is not 'local:', and its scheme is not 'ssh'"),
        ("local://box", "it is not 'local:', and its scheme is not 'ssh'"),
        ("ssh://root@", "it must name exactly one host"),
        ("ssh://box/path", "it must name exactly one host"),
        ("ssh://box#part", "it must name exactly one host"),
        ("ssh://box:99999", "Port out of range 0-65535"),
        ("ssh://-oProxyCommand=reboot", "'-oproxycommand=reboot' is not a host"),
        ("ssh://-l@box", "'-l' is not a user"),
        ("ssh://$(reboot)", "'$(reboot)' is not a host"),
        ("ssh://.hidden", "'.hidden' is not a host"),
        ("ssh://root:secret@box", "a password is not accepted, only a key"),
        ("ssh://box?keyfile=x", "'keyfile' is unknown"),
        ("ssh://box?config=/no/such/file", "there is no file '/no/such/file'"),
        ("ssh://box?config", "bad query field: 'config'"),
        ("ssh://box?sudo=", "'sudo' accepts only 'yes'"),
        ("ssh://box?timeout=0", "'0' is not a number of seconds"),
        ("ssh://box?timeout=long", "'long' is not a number of seconds"),
    ):
        with pytest.raises(
            BadInputError, match=rf"^--machine-uri: .*{re.escape(why)}; use 'local:' or"
        ):
            NodeAddress.from_uri(uri, source="--machine-uri")


def test_ssh_options_prevent_prompts_and_forwardings_and_shared_connections() -> None:
    """Keys, known hosts and jump hosts come from the configuration of the user."""
    assert NodeAddress(host="box").ssh_argv() == [
        "ssh",
        *("-T", "-a", "-x"),
        *("-o", "ClearAllForwardings=yes"),
        *("-o", "BatchMode=yes"),
        *("-o", "ConnectTimeout=10"),
        *("-o", "ServerAliveInterval=10"),
        *("-o", "ControlMaster=no"),
        *("-o", "PermitLocalCommand=no"),
        *("-o", "RemoteCommand=none"),
        *("-o", "UpdateHostKeys=no"),
        *("-o", "LogLevel=ERROR"),
        *("--", "box"),
    ]


def test_ssh_arguments_contain_the_parts_of_the_node_uri(tmp_path: Path) -> None:
    address = NodeAddress(
        host="box", user="me", port=2222, config=tmp_path / "config", connect_s=60
    )

    argv = address.ssh_argv()

    assert argv[:7] == ["ssh", "-F", f"{tmp_path}/config", "-p", "2222", "-l", "me"]
    assert "ConnectTimeout=60" in argv


def test_command_runs_in_sh_on_the_node_under_the_timeout_program() -> None:
    ssh = FakeSsh(stdout="6.1.0\n", stderr="no such unit\n\n{nonce} 4\n")

    result = NodeRunner(ADDRESS, ssh).run(
        ["uname", "-r"], timeout_s=30, stdin="text", env={"LC_ALL": "C.UTF-8"}
    )

    assert (result.argv, result.exit_code) == (("uname", "-r"), 4)
    assert (result.stdout, result.stderr) == ("6.1.0\n", "no such unit\n")
    shell, option, line = shlex.split(ssh.calls[0][-1])
    assert (shell, option) == ("sh", "-c")
    assert line.startswith("timeout --kill-after=5 30.000 env LC_ALL=C.UTF-8 uname -r; printf ")
    assert ssh.stdins == ["text"]
    assert ssh.timeouts == [30 + 10 + 20], "the command's, the connection's, and some more"


def test_command_that_was_ended_at_its_limit_is_reported_as_timed_out() -> None:
    timed_out = {
        (124, 5.0): True,
        (137, 5.0): True,
        (124, 4.9): False,
        (137, 4.9): False,
        (0, 5.0): False,
    }
    found = {}
    for exit_code, duration_s in timed_out:
        ssh = FakeSsh(stderr=f"\n{{nonce}} {exit_code}\n", duration_s=duration_s)
        result = NodeRunner(ADDRESS, ssh).run(["sleep", "9"], timeout_s=5)
        found[result.exit_code, result.duration_s] = result.timed_out

    assert found == timed_out


def test_timeout_program_of_a_command_with_sudo_runs_as_root() -> None:
    """A `timeout` that runs as the user could not kill a process of root."""
    ssh = FakeSsh()

    NodeRunner(NodeAddress(host="box", by_sudo=True), ssh).run(["uname"], timeout_s=5)

    *become, line = shlex.split(ssh.calls[0][-1])
    assert become == ["sudo", "-n", "sh", "-c"]
    assert line.startswith("timeout --kill-after=5 5.000 uname; ")


def test_error_for_a_failing_sudo_is_raised() -> None:
    runner = NodeRunner(
        NodeAddress(host="box", by_sudo=True),
        FakeSsh(stderr="sudo: a password is required\n", exit_code=1),
    )

    with pytest.raises(
        HarnessError, match=r"'ssh://box' .*a password is required\. Allow sudo without a password"
    ):
        runner.run(["uname"], timeout_s=5)


def test_error_of_sudo_in_a_command_is_not_taken_for_a_missing_permission_of_the_node() -> None:
    runner = NodeRunner(ADDRESS, FakeSsh(stderr="sudo: a password is required\n", exit_code=1))

    with pytest.raises(HarnessError, match="did not report how 'sudo true' ended"):
        runner.run(["sudo", "true"], timeout_s=5)


def test_unreachable_node_is_a_harness_error() -> None:
    refusal = "Host key verification failed."
    connecting = "ssh: connect to host box port 22: "
    for printed, remedy in (
        (
            refusal,
            "Connect once by hand, and accept the host key that ssh shows if it is the right one.",
        ),
        (
            f"@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n{refusal}",
            "Find out why the host has another key.",
        ),
        ("root@box: Permission denied (publickey).", "Authorize your key, or name the right"),
        ("ssh: Could not resolve hostname box: unknown", "Check the host's name."),
        (f"{connecting}Connection refused", "Check the port, and whether sshd runs there."),
        (f"{connecting}Connection timed out", "Check whether the host is up, and whether a fire"),
        (f"{connecting}No route to host", "Check whether the host is up, and the route to it."),
        (
            "kex_exchange_identification: reset",
            "Run `ssh` to this node in a terminal; it must connect without",
        ),
        ("", "Run `ssh` to this node in a terminal; it must connect without"),
    ):
        runner = NodeRunner(ADDRESS, FakeSsh(stderr=f"{printed}\n", exit_code=255))
        quoted = printed.replace("\n", " ").rstrip(".") or "nothing"

        with pytest.raises(
            HarnessError,
            match=f"'ssh://box' can't be reached; ssh printed: {re.escape(f'{quoted}. {remedy}')}",
        ):
            runner.run(["uname"], timeout_s=5)


def test_error_is_raised_if_the_node_does_not_report_how_a_command_ended() -> None:
    silent = FakeSsh(stderr="", exit_code=0)
    without_shell = FakeSsh(stderr="sh: not found\n", exit_code=1)
    of_another = FakeSsh(stderr="\n0000000000000000 0\n", exit_code=0)
    hanging = FakeSsh(stderr="", exit_code=124)
    for ssh in (silent, without_shell, of_another, hanging):
        with pytest.raises(
            HarnessError,
            match=r"^The node 'ssh://box' did not report how 'uname -r' ended.*\ncommand: ssh ",
        ):
            NodeRunner(ADDRESS, ssh).run(["uname", "-r"], timeout_s=5)


def test_error_for_output_above_the_limit_has_the_command_and_the_node() -> None:
    class Full:
        def run(self, argv: Argv, **_: object) -> CommandResult:
            return CommandResult(
                argv=tuple(argv), exit_code=-9, stdout="y" * 9, stderr="", wrote_too_much=True
            )

    with pytest.raises(LimitError, match=r"'yes' on the node 'ssh://box'.*'command-output-mib'"):
        NodeRunner(ADDRESS, Full()).run(["yes"], timeout_s=5)


def test_output_is_refused_if_the_ssh_connection_broke_after_the_output() -> None:
    """The output may be truncated even if it contains an exit code."""
    ssh = FakeSsh(stderr="\n{nonce} 0\nConnection reset\n", exit_code=255)

    with pytest.raises(HarnessError, match="can't be reached"):
        NodeRunner(ADDRESS, ssh).run(["uname"], timeout_s=5)


def test_missing_sudo_on_the_node_is_not_reported_as_a_missing_ssh() -> None:
    runner = NodeRunner(
        NodeAddress(host="box", by_sudo=True),
        FakeSsh(stderr="sh: sudo: not found\n", exit_code=127),
    )

    with pytest.raises(HarnessError, match="did not report") as caught:
        runner.run(["uname"], timeout_s=5)

    assert "sh: sudo: not found" in str(caught.value)
    assert not isinstance(caught.value, RequirementError)


def test_command_on_the_local_host_runs_without_ssh() -> None:
    runner = ScriptedRunner().expect(
        "cat", stdout="text", timeout_s=5, stdin="text", env={"LC_ALL": "C"}
    )

    with runner:
        result = NodeRunner(NodeAddress(), runner).run(
            ["cat"], timeout_s=5, stdin="text", env={"LC_ALL": "C"}
        )

    assert result.stdout == "text"


def test_ssh_command_for_the_local_host_is_refused() -> None:
    with pytest.raises(
        HarnessError,
        match=r"^The node is this host, so no ssh command is needed to reach the node\.$",
    ):
        NodeAddress().ssh_argv()


def test_name_of_a_node_is_a_valid_folder_name() -> None:
    names = {None: "local", "box.lab": "box.lab", "fe80::1%eth0": "fe80--1-eth0"}

    assert {host: NodeAddress(host=host).name for host in names} == names
