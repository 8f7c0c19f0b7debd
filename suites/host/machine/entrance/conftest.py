"""Fixtures of the tests of entrances."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from harness.machine.channels.agent import Agent
from harness.machine.channels.console import Console
from harness.machine.entrance.roster import RunningMachine
from harness.machine.entrance.server import served_entrance
from suites.host.machine.entrance.enterable import Enterable, Place
from suites.unit.machine.channels.played_guest import PROGRAM, PlayedGuest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    guest = PlayedGuest()
    ours, theirs = socket.socketpair()
    agent, console = Agent("node", guest.ours, PROGRAM), Console("node", ours)
    guest.starts()
    # This path exceeds the length limit of a socket's path.
    folder = tmp_path / ("long-" * 30)
    folder.mkdir()
    machine = RunningMachine(
        id="node-1",
        name="node",
        purpose="a test",
        process=1,
        since=0.0,
        memory_mib=1,
        folder=folder,
    )
    with served_entrance(Enterable(agent=agent, console=console), folder):
        yield Place(guest, theirs, machine)
    theirs.close()
    console.close()
    agent.close()
    guest.ends()


@pytest.fixture(autouse=True)
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], int]]:
    """Replace this process's stdin by a pipe, and yield a function that writes to the pipe."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield functools.partial(os.write, writing)
    with contextlib.suppress(OSError):
        os.close(writing)
