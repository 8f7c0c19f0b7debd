"""Lists a running machine for `harness ps`, and lets people open a shell in the machine."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.machine.channels.console_recording import RECORDING, ConsoleRecorder
from harness.machine.entrance.roster import RunningMachine, purpose_of_process
from harness.machine.entrance.server import SshEntry, served_entrance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from harness.machine import Machine
    from harness.machine.channels.agent import Agent
    from harness.machine.channels.console import Console
    from harness.machine.channels.ssh import SshIdentity
    from harness.machine.entrance.roster import Roster

_SSH_S = 60.0
_KNOWN_HOSTS = "known_hosts"
#: Adds a key to root's authorized keys, starts the SSH server, and prints the server's host keys.
_LET_IN = """
mkdir -p -m 700 /root/.ssh && file=/root/.ssh/authorized_keys
grep -qsxF "$1" "$file" || printf '%s\\n' "$1" >>"$file" || exit
chmod 600 "$file"
ls /etc/ssh/ssh_host_*_key >/dev/null 2>&1 || ssh-keygen -A >/dev/null
systemctl start ssh 2>/dev/null || systemctl start sshd || exit
cat /etc/ssh/ssh_host_*_key.pub
"""


@dataclass(frozen=True, kw_only=True)
class _Enterable:
    """A VM, with the operations by which people open a shell in its guest."""

    name: str
    vm: Machine
    folder: Path
    identity: Callable[[], SshIdentity]

    @property
    def agent(self) -> Agent:
        return self.vm.agent

    @property
    def console(self) -> Console:
        return self.vm.console

    def ssh_entry(self) -> SshEntry:
        """Authorize the key of the machine's lab in the guest, and return how to connect."""
        port = self.vm.ssh_port()
        keys = self.identity().folder
        key = (keys / "user.pub").read_text().strip()
        let_in = self.agent.run(["sh", "-c", _LET_IN, "let-in", key], timeout_s=_SSH_S)
        if not let_in.ok:
            raise HarnessError(
                f"The SSH server of machine '{self.name}' does not start; use `harness shell --machine`, "
                f"which needs no SSH server.\n{let_in.render()}"
            )
        known = self.folder / _KNOWN_HOSTS
        lines = [f"guest {line}" for line in let_in.stdout.splitlines() if line.strip()]
        known.write_text("\n".join(lines) + "\n")
        return SshEntry(port=port, key=keys / "user", known_hosts=known)


class Listing:
    """The line of a machine in `harness ps`."""

    def __init__(self, roster: Roster, name: str, machine: RunningMachine) -> None:
        self._roster = roster
        self._name = name
        self._machine = machine

    def show_gpus(self, gpus: Sequence[str]) -> None:
        """Show these GPU names in the list from now on."""
        self._machine = replace(self._machine, gpus=tuple(gpus))
        self._roster.update(self._name, self._machine)


@contextlib.contextmanager
def open_entrance(
    vm: Machine,
    folder: Path,
    *,
    identity: Callable[[], SshIdentity],
    roster: Roster,
    gpus: Sequence[str],
    until: float | None,
) -> Iterator[Listing]:
    """List a started VM, record its console, and let people connect by sockets in `folder`.

    All this ends with the context. `gpus` are the names of the VM's GPUs. `until` is the time at which a kept machine ends, in
    seconds since the epoch.
    """
    listed = RunningMachine(
        id=folder.name,
        name=vm.spec.name,
        purpose=purpose_of_process(sys.argv),
        process=os.getpid(),
        user=vm.pid,
        since=time.time(),
        memory_mib=vm.spec.memory_mib,
        folder=folder,
        gpus=tuple(gpus),
        until=until,
    )
    enterable = _Enterable(name=vm.spec.name, vm=vm, folder=folder, identity=identity)
    recorder = ConsoleRecorder(folder / RECORDING, title=listed.purpose)
    with (
        contextlib.closing(recorder),
        vm.console.tapped(recorder),
        served_entrance(enterable, folder),
        roster.entered(listed) as name,
    ):
        yield Listing(roster, name, listed)
