"""A fixture with an agent's server. The test acts as the guest and as the host."""

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
