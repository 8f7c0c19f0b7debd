"""Fixtures of the tests of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.e2e.agent.local_agent import LocalAgent, soon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.machine.channels.agent import Agent


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalAgent]:
    local = LocalAgent(tmp_path)
    yield local
    local.close()


@pytest.fixture
def agent(local: LocalAgent) -> Agent:
    local.client.wait_until_ready(soon())
    return local.client
