"""Fixtures: a fake guest, and a client of its agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.machine.channels.agent import Agent
from suites.unit.machine.channels.played_guest import PROGRAM, PlayedGuest, soon

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def guest() -> Iterator[PlayedGuest]:
    guest = PlayedGuest()
    yield guest
    guest.ends()


@pytest.fixture
def agent(guest: PlayedGuest) -> Iterator[Agent]:
    agent = Agent("node", guest.ours, PROGRAM)
    yield agent
    agent.close()


@pytest.fixture
def ready(guest: PlayedGuest, agent: Agent) -> Agent:
    """Return a client whose agent is ready."""
    guest.starts()
    agent.wait_until_ready(soon())
    return agent
