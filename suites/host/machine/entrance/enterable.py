"""A machine that users can enter; the test acts as the guest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    import socket

    from harness.machine.channels.agent import Agent
    from harness.machine.channels.console import Console
    from harness.machine.entrance.roster import RunningMachine
    from harness.machine.entrance.server import SshEntry
    from suites.unit.machine.channels.played_guest import PlayedGuest


@dataclass
class Place:
    """A machine with an entrance: its simulated guest, its console, and its entry in the roster."""

    guest: PlayedGuest
    serial: socket.socket
    machine: RunningMachine


@dataclass(kw_only=True)
class Enterable:
    agent: Agent
    console: Console
    name: str = "node"

    def ssh_entry(self) -> SshEntry:
        raise HarnessError("There is no SSH server.")
