"""Saving and loading the state of a machine's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.channels.monitor import MonitorLostError
from harness.machine.device_state import (
    DeviceStateError,
    is_end,
    load_device_state,
    load_whole_state,
    save_device_state,
    stream_whole_state,
)
from suites.unit.machine.fake_monitor import FakeMonitor, an_event

if TYPE_CHECKING:
    from pathlib import Path

DONE = an_event("MIGRATION", status="completed")


@pytest.mark.parametrize(
    ("name", "status", "expected"),
    [
        ("MIGRATION", "active", False),
        ("MIGRATION", "completed", True),
        ("MIGRATION", "failed", True),
        ("MIGRATION", "cancelled", True),
        ("JOB_STATUS_CHANGE", "completed", False),
    ],
)
def test_migration_ends_when_it_is_completed_failed_or_cancelled(
    name: str, status: str, *, expected: bool
) -> None:
    assert is_end(an_event(name, status=status)) is expected


@pytest.mark.parametrize(
    ("major", "uri", "command", "argument"),
    [
        (7, "fd:state", "getfd", {"fdname": "state"}),
        (8, "fd:state", "getfd", {"fdname": "state"}),
        (11, "file:/dev/fdset/1", "add-fd", {"fdset-id": 1}),
    ],
)
def test_state_file_is_passed_as_this_qemu_takes_it(
    tmp_path: Path, major: int, uri: str, command: str, argument: object
) -> None:
    version = {"qemu": {"major": major, "minor": 1, "micro": 0}, "package": ""}
    monitor = FakeMonitor({"query-version": version}, {"migrate": DONE})

    save_device_state(monitor, "node", tmp_path / "state")

    assert monitor.arguments["migrate"] == {"uri": uri}
    assert monitor.arguments[command] == argument
    assert list(monitor.descriptors) == [command]


def test_end_of_an_earlier_migration_does_not_count(tmp_path: Path) -> None:
    monitor = FakeMonitor()
    monitor.recorded.append(DONE)

    with pytest.raises(DeviceStateError, match="the end of 'migrate' was not reported"):
        save_device_state(monitor, "node", tmp_path / "state")


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_state_that_is_not_loaded_is_named(tmp_path: Path, status: str) -> None:
    state = tmp_path / "state"
    state.touch()
    monitor = FakeMonitor(events={"migrate-incoming": an_event("MIGRATION", status=status)})

    with pytest.raises(DeviceStateError, match=rf"state '{state}'\. It ended as '{status}'\."):
        load_device_state(monitor, "node", state)


def test_command_that_qemu_refuses_is_a_state_error(tmp_path: Path) -> None:
    monitor = FakeMonitor({"migrate": HarnessError("Migration is disabled.")})

    with pytest.raises(DeviceStateError, match=r"'migrate'.*Migration is disabled\."):
        save_device_state(monitor, "node", tmp_path / "state")


def test_lost_monitor_says_nothing_about_the_state(tmp_path: Path) -> None:
    monitor = FakeMonitor({"migrate": MonitorLostError("libvirtd ended.")})

    with pytest.raises(MonitorLostError, match=r"^libvirtd ended\.$"):
        save_device_state(monitor, "node", tmp_path / "state")


def test_whole_state_goes_through_the_callers_pipe() -> None:
    monitor = FakeMonitor(events={"migrate": DONE})

    stream_whole_state(monitor, "node", 7)

    assert monitor.descriptors == {"getfd": 7}
    assert monitor.arguments["migrate"] == {"uri": "fd:state"}
    capabilities = monitor.arguments["migrate-set-capabilities"]["capabilities"]
    assert {"capability": "x-ignore-shared", "state": False} in capabilities  # type: ignore[operator]


def test_whole_state_that_is_not_loaded_is_an_error() -> None:
    monitor = FakeMonitor(events={"migrate-incoming": an_event("MIGRATION", status="failed")})

    with pytest.raises(
        DeviceStateError, match=r"a stream of its whole state\. It ended as 'failed'"
    ):
        load_whole_state(monitor, "node", 7)
