"""Forbids processes, sockets and sleeps in unit tests, and keeps temporary files in memory if they fit.

The suites make tens of thousands of small files and folders. On a disk, these take more time than
all other work of the tests.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.wait import SystemClock
from suites.fakes.clock import FakeClock
from suites.unit.forbidden_calls import (  # noqa: F401 - hooks
    pytest_runtest_call,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    pytest_runtest_teardown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a private folder below it
_NEEDED_BYTES = 512 << 20
_NEEDED_FILES = 200_000


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return False
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize >= _NEEDED_BYTES and state.f_favail >= _NEEDED_FILES


# A host test after unit tests in the same process needs folders that an ordinary user may enter.
@pytest.fixture(scope="package", autouse=True)
def own_temporary_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give each worker its own temporary folders, so that no worker waits for another worker's lock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.getbasetemp()))
        yield


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Replace the system's clock by a fake clock, so that waits of product code take no time."""
    clock = FakeClock()
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: clock.monotonic())
    monkeypatch.setattr(SystemClock, "sleep", lambda _, seconds: clock.sleep(seconds))
    return clock


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the number of resamples, for tests that do not check estimates."""
    monkeypatch.setattr("harness.bench.time_to_gpu.estimates.RESAMPLES", 200)


# Messages of argparse are in English, and it looks for no catalogue of messages at each of them.
os.environ["LANGUAGE"] = "C"
if "TMPDIR" not in os.environ and _has_room(_MEMORY):
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None
