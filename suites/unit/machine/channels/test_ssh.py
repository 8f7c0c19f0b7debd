"""Commands in a guest over ssh: what is sent, and which answers are accepted."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError, RequirementError
from harness.limits import LimitError
from harness.machine.channels.ssh import (
    SshIdentity,
    SshRunner,
    generated_once,
    render_remote,
)
from harness.provisioning.command import CommandResult
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.fakes.ssh import FakeSsh

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import Argv

NONCE = "0011223344556677"


@pytest.fixture
def identity(tmp_path: Path) -> SshIdentity:
    folder = tmp_path / "keys of this run"
    folder.mkdir()
    for name, text in (
        ("user", "PRIVATE"),
        ("user.pub", "ssh-ed25519 USER harness-user\n"),
        ("host", "HOST PRIVATE\n"),
        ("host.pub", "ssh-ed25519 HOST harness-host\n"),
    ):
        (folder / name).write_text(text)
    return SshIdentity(folder=folder)


def a_runner(tmp_path: Path, identity: SshIdentity, ssh: FakeSsh) -> SshRunner:
    folder = tmp_path / "100% of a, long path" / ("x" * 120)
    folder.mkdir(parents=True)
    return SshRunner(name="node", port=2222, identity=identity, folder=folder, runner=ssh)


def run(runner: SshRunner, *argv: str, timeout_s: float = 30.0) -> CommandResult:
    return runner.run(argv, timeout_s=timeout_s)


def test_result_has_the_exit_code_and_output_of_the_guest(
    tmp_path: Path, identity: SshIdentity
) -> None:
    ssh = FakeSsh(stdout="out\n", stderr="warning\n\n{nonce} 3\n")

    result = run(a_runner(tmp_path, identity, ssh), "false")

    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "warning\n")
    assert result.argv == ("false",)


def test_lost_connection_is_not_taken_for_the_end_of_a_command(
    tmp_path: Path, identity: SshIdentity
) -> None:
    """A status that is missing, truncated or of another command is not an answer.

    The connection may also break after a part of the output.
    """
    no_answers = ("", "\n{nonce} ", "\n{nonce} 0", "\n{nonce} zero\n", "\nffffffffffffffff 0\n")
    for ssh in (
        *(FakeSsh(stderr=stderr) for stderr in no_answers),
        FakeSsh(stderr="", exit_code=255),
        FakeSsh(stdout="hal", exit_code=255),
        FakeSsh(stderr="", exit_code=124, timed_out=True, duration_s=50),
    ):
        runner = SshRunner(name="node", port=1, identity=identity, folder=tmp_path, runner=ssh)

        with pytest.raises(HarnessError, match="'node' did not report how 'reboot now' ended"):
            run(runner, "reboot", "now")


def test_error_mentions_the_command_that_exceeds_the_output_limit(
    tmp_path: Path, identity: SshIdentity
) -> None:
    class Full:
        def run(self, argv: Argv, **_: object) -> CommandResult:
            return CommandResult(
                argv=tuple(argv),
                exit_code=-9,
                stdout="y" * 100_000,
                stderr="",
                wrote_too_much=True,
            )

    runner = SshRunner(name="node", port=1, identity=identity, folder=tmp_path, runner=Full())

    with pytest.raises(LimitError, match=r"'yes' in machine 'node'.*'command-output-mib'"):
        runner.run(["yes"], timeout_s=5)


def test_background_output_after_the_exit_code_is_included(
    tmp_path: Path, identity: SshIdentity
) -> None:
    ssh = FakeSsh(stderr="before\n\n{nonce} 0\nafter\n")

    result = run(a_runner(tmp_path, identity, ssh), "service", "start")

    assert (result.exit_code, result.stderr) == (0, "before\nafter\n")


def test_forged_status_in_the_output_is_ignored(tmp_path: Path, identity: SshIdentity) -> None:
    ssh = FakeSsh(stderr=f"\n{NONCE} 0\n\n{{nonce}} 7\n")

    assert run(a_runner(tmp_path, identity, ssh), "x").exit_code == 7


def test_result_shows_whether_the_time_limit_in_the_guest_ended_the_command(
    tmp_path: Path, identity: SshIdentity
) -> None:
    """A command may exit with 124 itself."""
    for code, seconds, timed_out in ((124, 30, True), (137, 36, True), (124, 0.1, False)):
        ssh = FakeSsh(stderr=f"\n{{nonce}} {code}\n", duration_s=seconds)
        runner = SshRunner(name="node", port=1, identity=identity, folder=tmp_path, runner=ssh)

        result = run(runner, "sleep", "99", timeout_s=30)

        assert (result.exit_code, result.timed_out) == (code, timed_out)


def test_command_ends_at_the_time_limit_if_a_daemon_keeps_its_output_open(
    tmp_path: Path, identity: SshIdentity
) -> None:
    ssh = FakeSsh(exit_code=124, timed_out=True, duration_s=50)

    result = run(a_runner(tmp_path, identity, ssh), "daemon")

    assert (result.exit_code, result.timed_out) == (124, True)


def test_command_of_the_guest_gets_the_callers_input_and_environment_and_time_limit(
    tmp_path: Path, identity: SshIdentity
) -> None:
    """The limit on the host is longer than the limit in the guest."""
    ssh = FakeSsh(duration_s=1.5)

    result = a_runner(tmp_path, identity, ssh).run(
        ["cat"], timeout_s=30, stdin="for the guest", env={"LANG": "C"}
    )

    assert ssh.stdins == ["for the guest"]
    assert " 30.000 env LANG=C cat;" in ssh.calls[0][-1]
    assert ssh.timeouts[0] > 30
    assert result.duration_s == 1.5


def test_ssh_options_contain_no_absolute_path_of_the_host(
    tmp_path: Path, identity: SshIdentity
) -> None:
    """Ssh splits paths at blanks and expands '%'. A socket path may have at most 108 bytes."""
    ssh = FakeSsh()

    run(a_runner(tmp_path, identity, ssh), "true")

    env, chdir, *options = ssh.calls[0][:-1]
    assert (env, chdir.partition("=")[0]) == ("env", "--chdir")
    assert not [option for option in options if str(tmp_path) in option or "%" in option]
    assert {"ControlPath=ssh", "UserKnownHostsFile=keys/known_hosts"} <= set(options)


def test_guest_is_verified_by_its_host_key(tmp_path: Path, identity: SshIdentity) -> None:
    ssh = FakeSsh()

    run(a_runner(tmp_path, identity, ssh), "true")

    assert {"StrictHostKeyChecking=yes", "HostKeyAlias=guest", "BatchMode=yes"} <= set(
        ssh.calls[0]
    )


def test_two_ssh_runners_can_use_the_same_folder(tmp_path: Path, identity: SshIdentity) -> None:
    for _ in range(2):
        SshRunner(name="node", port=1, identity=identity, folder=tmp_path, runner=FakeSsh())

    assert (tmp_path / "keys" / "user").read_text() == "PRIVATE"


@given(st.lists(st.text(" \t\n'\"\\$`!#&|;<>()*?~{}=%-aé"), min_size=1))
def test_every_argument_reaches_the_guest_unchanged(argv: list[str]) -> None:
    line = render_remote(argv, timeout_s=1, env={}, nonce=NONCE)

    command, _, tail = line.rpartition("; printf ")

    assert shlex.split(command) == ["timeout", "--kill-after=5", "1.000", *argv]
    assert tail == rf"'\n%s %s\n' {NONCE} $? >&2"


def test_environment_is_set_in_the_guest() -> None:
    line = render_remote(["x"], timeout_s=1, env={"A": "b c", "D": "$E"}, nonce=NONCE)

    assert shlex.split(line)[3:6] == ["env", "A=b c", "D=$E"]


def test_time_limit_of_0_is_rendered_as_a_very_short_limit() -> None:
    """In timeout(1), a limit of 0 means no limit."""
    assert shlex.split(render_remote(["x"], timeout_s=0, env={}, nonce=NONCE))[2] == "0.001"


def test_ssh_access_has_the_public_keys_and_shows_no_private_key(identity: SshIdentity) -> None:
    access = identity.access

    assert access.authorized_key == "ssh-ed25519 USER harness-user"
    assert access.host_public_key == "ssh-ed25519 HOST harness-host"
    assert "PRIVATE" not in repr(access)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")
def test_ssh_keys_are_generated_once(identity: SshIdentity) -> None:
    with ScriptedRunner() as nothing:
        generated = SshIdentity.generate(identity.folder, nothing)

    assert generated == identity
    known = (identity.folder / "known_hosts").read_text()
    assert known == "guest ssh-ed25519 HOST harness-host\n"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")
def test_only_a_missing_ssh_key_is_generated(identity: SshIdentity) -> None:
    for name in ("user", "host"):
        key = identity.folder / name
        key.unlink()
        command = f"ssh-keygen -q -t ed25519 -N '' -C harness-{name} -f '{key}'"

        with ScriptedRunner().expect(command, timeout_s=20.0) as runner:
            SshIdentity.generate(identity.folder, runner)
        key.write_text("PRIVATE")


def test_keys_are_generated_at_their_first_use(
    identity: SshIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def generate(folder: Path) -> SshIdentity:
        asked.append(folder)
        return identity

    monkeypatch.setattr(SshIdentity, "generate", generate)
    keys = generated_once(tmp_path / "keys")
    assert not (tmp_path / "keys").exists()

    assert (keys(), keys()) == (identity, identity)

    assert asked == [tmp_path / "keys"]
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")
def test_failing_key_generation_is_a_harness_error(tmp_path: Path) -> None:
    runner = ScriptedRunner().expect(
        f"ssh-keygen -q -t ed25519 -N '' -C harness-user -f '{tmp_path / 'user'}'",
        timeout_s=20.0,
        exit_code=1,
        stderr="No space left on device",
    )

    with runner, pytest.raises(HarnessError, match="No space left on device"):
        SshIdentity.generate(tmp_path, runner)


def test_missing_openssh_is_reported_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RequirementError, match="apt-get install openssh-client"):
        SshIdentity.generate(tmp_path)
