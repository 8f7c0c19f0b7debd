"""Fixtures for provisioning: a simulated node, and a way to run commands on it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from .fakes import Invocation
from .simulation import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="package", autouse=True)
def _quick_disk() -> Iterator[None]:
    """Skip fsync: no test here can observe data that a power failure would lose."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="package", autouse=True)
def _other_time_zone() -> Iterator[None]:
    """Run in a time zone other than UTC: in UTC, a local time in a log would look right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "NODE-05:30")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path)


@pytest.fixture
def invocation(simulated: SimulatedNode) -> Invocation:
    return Invocation(simulated.top, simulated)
