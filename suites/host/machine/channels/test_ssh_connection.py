"""How the connection to a guest's ssh server is opened and closed, with a fake ssh program."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.channels import ssh as module
from harness.machine.channels.ssh import SshIdentity, SshRunner
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

_STAYS = "touch ssh\necho connected\nexec sleep 600"
_REFUSED = "printf 'Connection \\377 refused\\n' >&2\nexit 255"


@pytest.fixture
def runner(tmp_path: Path) -> SshRunner:
    folder = tmp_path / "100% of a machine"
    folder.mkdir()
    identity = SshIdentity(folder=tmp_path / "keys")
    return SshRunner(name="node", port=2222, identity=identity, folder=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the machine's folder, in which ssh runs."""
    return tmp_path / "100% of a machine"


def _put_ssh(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a fake `ssh` that adds a line to the file 'started' and then runs `script`."""
    programs = folder.parent / "programs"
    programs.mkdir()
    program = programs / "ssh"
    program.write_text(f"#!/bin/sh\necho $$ >>started\nprintf '%s\\n' \"$@\" >words\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")


def _of_which(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "started").read_text().split()]


def test_ssh_control_connection_stays_open_until_it_is_closed(
    runner: SshRunner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put_ssh(folder, _STAYS, monkeypatch)

    runner.connect(Deadline.after(30.9, FakeClock()))

    words = " ".join((folder / "words").read_text().splitlines())
    assert words.replace(" -", "\n-").splitlines() == [
        "-F none",
        "-p 2222",
        "-i keys/user",
        "-o ControlPath=ssh",
        "-o BatchMode=yes",
        "-o IdentitiesOnly=yes",
        "-o UserKnownHostsFile=keys/known_hosts",
        "-o GlobalKnownHostsFile=none",
        "-o HostKeyAlias=guest",
        "-o StrictHostKeyChecking=yes",
        "-o LogLevel=ERROR",
        "-o ConnectTimeout=30",
        "-o ServerAliveInterval=30",
        "-o PermitLocalCommand=yes",
        "-o LocalCommand=echo connected",
        "-M",
        "-N root@127.0.0.1",
    ]
    (process_id,) = _of_which(folder)
    assert Path("/proc", str(process_id)).exists()
    assert (folder / "ssh").exists()

    runner.close()

    assert not Path("/proc", str(process_id)).exists()
    assert not (folder / "ssh").exists()


def test_ssh_connection_is_retried_until_the_server_is_up(
    runner: SshRunner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put_ssh(folder, f"if [ ! -e tried ]; then touch tried\n{_REFUSED}\nfi\n{_STAYS}", monkeypatch)
    clock = FakeClock()

    runner.connect(Deadline.after(30, clock))

    assert len(_of_which(folder)) == 2
    assert len(clock.sleeps) == 1
    runner.close()


def test_server_that_never_comes_up_is_reported_with_the_output_of_ssh(
    runner: SshRunner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put_ssh(folder, _REFUSED, monkeypatch)
    clock = FakeClock(on_sleep=lambda: clock.advance(1000))

    with pytest.raises(
        HarnessError, match=r"in time; ssh's last output: Connection \ufffd refused\."
    ):
        runner.connect(Deadline.after(2500, clock))

    assert len(_of_which(folder)) == 3


def test_ssh_that_prints_nothing_is_an_error_at_the_deadline(
    runner: SshRunner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put_ssh(folder, "exec sleep 600", monkeypatch)

    with pytest.raises(HarnessError, match=r"ssh's last output: nothing\."):
        runner.connect(Deadline.after(0.01, FakeClock()))


def test_connection_is_not_tried_again_if_the_ssh_client_is_missing(
    runner: SshRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("setpriv", "sh"):
        program = shutil.which(name)
        assert program is not None
        (tmp_path / name).symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    clock = FakeClock()

    with pytest.raises(HarnessError, match=r"exec: ssh: not found\. The console's log"):
        runner.connect(Deadline.after(30, clock))

    assert clock.sleeps == []


def test_connect_timeout_of_less_than_a_second_becomes_one_second(
    runner: SshRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ssh treats a limit of 0 as no limit."""
    started: list[Sequence[str]] = []

    def start(argv: Sequence[str], **_: object) -> None:
        started.append(argv)
        raise FileNotFoundError

    monkeypatch.setattr(module, "spawn", start)

    with pytest.raises(FileNotFoundError):
        runner.connect(Deadline.after(0.5, FakeClock()))

    assert "ConnectTimeout=1" in started[0]


def test_connecting_after_the_deadline_reports_the_timeout(runner: SshRunner) -> None:
    with pytest.raises(HarnessError, match="in time; ssh's last output: nothing"):
        runner.connect(Deadline.after(0))
