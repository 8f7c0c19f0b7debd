"""A fixture with an agent's server whose guest and host a test plays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.unit.agent.fakes import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.greets()
    bench.gets()
    yield bench
    bench.close()
