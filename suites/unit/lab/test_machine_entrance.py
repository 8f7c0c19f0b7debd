"""The list of running machines, and SSH access to a running machine."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.errors import HarnessError
from harness.lab import machine_entrance
from harness.lab.machine_entrance import Listing, open_entrance
from harness.machine.channels.ssh import SshIdentity
from suites.unit.lab.fake_vm import PID, FakeVm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.machine import Machine
    from harness.machine.entrance.roster import Roster, RunningMachine
    from harness.machine.entrance.server import SshEntry
    from suites.unit.lab.stage import Stage

KEYS = "ssh-ed25519 AAAA root@node\n\necdsa-sha2 BBBB root@node\n"


class Door:
    """Records the machine that is served, and its list entry, while the entrance is open."""

    def __init__(self) -> None:
        self.enterable: Any = None
        self.listed: list[RunningMachine] = []
        self.folder: Path | None = None
        self.listing: Listing | None = None

    @contextlib.contextmanager
    def served(self, enterable: object, folder: Path) -> Iterator[None]:
        self.enterable, self.folder = enterable, folder
        yield
        self.enterable = None

    @contextlib.contextmanager
    def entered(self, machine: RunningMachine) -> Iterator[str]:
        self.listed.append(machine)
        yield machine.id
        self.listed.clear()

    def update(self, name: str, machine: RunningMachine) -> None:
        self.listed = [machine if each.id == name else each for each in self.listed]


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    made = Door()
    monkeypatch.setattr(machine_entrance, "served_entrance", made.served)
    return made


@contextlib.contextmanager
def opened(stage: Stage, door: Door, folder: Path) -> Iterator[FakeVm]:
    keys = folder / "keys"
    keys.mkdir()
    (keys / "user.pub").write_text("ssh-ed25519 CCCC harness\n")
    machine_folder = folder / "node-0123"
    machine_folder.mkdir()
    vm = FakeVm(stage.machine().spec, stage.noted, stage.agent)
    with open_entrance(
        cast("Machine", vm),
        machine_folder,
        identity=lambda: SshIdentity(folder=keys),
        roster=cast("Roster", door),
        gpus=["h100"],
        until=12.5,
    ) as door.listing:
        yield vm


def test_machine_is_listed_with_its_gpus_while_it_runs(
    stage: Stage, door: Door, tmp_path: Path
) -> None:
    with opened(stage, door, tmp_path) as vm:
        (listed,) = door.listed
        assert (listed.id, listed.name, listed.gpus) == ("node-0123", "node", ("h100",))
        assert (listed.process, listed.user, listed.until) == (os.getpid(), PID, 12.5)
        assert (listed.memory_mib, listed.folder) == (1536, tmp_path / "node-0123")
        assert listed.purpose.endswith("::test_machine_is_listed_with_its_gpus_while_it_runs")
        assert listed.since > 0
        assert door.folder == tmp_path / "node-0123"
        assert (door.enterable.name, door.enterable.agent) == ("node", vm.agent)
        assert door.enterable.console is vm.console
        assert len(vm.console.taps) == 1

        assert door.listing is not None
        door.listing.show_gpus(["h100", "l4"])
        (listed,) = door.listed
        assert (listed.id, listed.gpus, listed.until) == ("node-0123", ("h100", "l4"), 12.5)

    assert door.listed == []
    assert door.enterable is None
    assert vm.console.taps == []


def test_machine_of_a_command_is_listed_with_its_command_line(
    stage: Stage, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/harness", "boot", "--keep"])

    with opened(stage, door, tmp_path):
        assert door.listed[0].purpose == "harness boot --keep"


def enter(stage: Stage, door: Door, folder: Path) -> SshEntry:
    with opened(stage, door, folder):
        entry: SshEntry = door.enterable.ssh_entry()
        return entry


def test_lab_key_is_authorized_in_the_guest_and_guest_host_keys_are_written_to_known_hosts(
    stage: Stage, door: Door, tmp_path: Path
) -> None:
    stage.agent.answers["let-in"] = KEYS

    entry = enter(stage, door, tmp_path)

    assert entry.port == 2222
    assert entry.key == tmp_path / "keys/user"
    assert entry.known_hosts == tmp_path / "node-0123/known_hosts"
    assert entry.known_hosts.read_text() == (
        "guest ssh-ed25519 AAAA root@node\nguest ecdsa-sha2 BBBB root@node\n"
    )
    (asked,) = stage.agent.commands()
    assert (asked[:2], asked[3:]) == (("sh", "-c"), ("let-in", "ssh-ed25519 CCCC harness"))
    assert stage.agent.limits_s[asked] == 60


def test_error_for_a_guest_without_an_ssh_server_suggests_harness_shell(
    stage: Stage, door: Door, tmp_path: Path
) -> None:
    stage.agent.refused.add("let-in")

    with pytest.raises(
        HarnessError,
        match=r"(?s)^The SSH server of machine 'node' does not start; use `harness shell "
        r"--machine`, which needs no SSH server\.\n.*let-in",
    ):
        enter(stage, door, tmp_path)

    assert not (tmp_path / "node-0123/known_hosts").exists()
