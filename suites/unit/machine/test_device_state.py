"""Saving and loading the state of a machine's devices."""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.errors import HarnessError
from harness.machine.channels.monitor import COMMAND_S, MonitorLostError
from harness.machine.device_state import (
    DeviceStateError,
    is_end,
    load_device_state,
    load_whole_state,
    restore_whole_state,
    save_device_state,
    stream_whole_state,
    suffix,
)
from suites.unit.machine.fake_monitor import FakeMonitor, an_event

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DONE = an_event("MIGRATION", status="completed")


def test_migration_ends_when_it_is_completed_or_failed_or_cancelled() -> None:
    statuses = ("active", "completed", "failed", "cancelled")

    ends = [status for status in statuses if is_end(an_event("MIGRATION", status=status))]

    assert ends == ["completed", "failed", "cancelled"]
    assert not is_end(an_event("JOB_STATUS_CHANGE", status="completed"))


def test_state_file_is_passed_by_getfd_or_add_fd_depending_on_the_qemu_version(
    tmp_path: Path,
) -> None:
    """A QEMU of an unknown version gets the state as an old QEMU does."""
    old: tuple[str, str, object] = ("getfd", "fd:state", {"fdname": "state"})
    new: tuple[str, str, object] = ("add-fd", "file:/dev/fdset/1", {"fdset-id": 1})
    versions: tuple[tuple[object, tuple[str, str, object]], ...] = (
        ({"qemu": {"major": 8, "minor": 1, "micro": 0}, "package": ""}, old),
        ({"qemu": {"major": 9, "minor": 1, "micro": 0}, "package": ""}, new),
        ("11.1", old),
        ({"qemu": "11.1"}, old),
        ({"qemu": {"minor": 11}}, old),
    )
    for number, (version, (command, uri, argument)) in enumerate(versions):
        monitor = FakeMonitor({"query-version": version}, {"migrate": DONE})

        save_device_state(monitor, "node", tmp_path / f"state-{number}")

        assert monitor.arguments["migrate"] == {"uri": uri}
        assert monitor.arguments[command] == argument
        assert list(monitor.descriptors) == [command]


KEEP_MEMORY_IN_ITS_FILE = [
    {"capability": "x-ignore-shared", "state": True},
    {"capability": "events", "state": True},
]
WITH_MEMORY = [
    {"capability": "x-ignore-shared", "state": False},
    {"capability": "events", "state": True},
]


def test_saving_the_device_state_sends_the_expected_qmp_commands(tmp_path: Path) -> None:
    monitor = FakeMonitor(events={"migrate": DONE})

    save_device_state(monitor, "node", tmp_path / "state")

    assert monitor.calls == [
        ("migrate-set-capabilities", {"capabilities": KEEP_MEMORY_IN_ITS_FILE}),
        ("query-version", {}),
        ("getfd", {"fdname": "state"}),
        ("migrate", {"uri": "fd:state"}),
    ]
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600


def test_loading_the_device_state_sends_the_expected_qmp_commands(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    monitor = FakeMonitor(events={"migrate-incoming": DONE})

    load_device_state(monitor, "node", tmp_path / "state")

    assert monitor.calls == [
        ("migrate-set-capabilities", {"capabilities": KEEP_MEMORY_IN_ITS_FILE}),
        ("migrate-set-parameters", {"announce-rounds": 0}),
        ("query-version", {}),
        ("getfd", {"fdname": "state"}),
        ("migrate-incoming", {"uri": "fd:state"}),
    ]


def test_streaming_the_whole_state_sends_the_expected_qmp_commands() -> None:
    monitor = FakeMonitor(events={"migrate": DONE})

    stream_whole_state(monitor, "node", 7)

    assert monitor.calls == [
        ("migrate-set-capabilities", {"capabilities": WITH_MEMORY}),
        ("migrate-set-parameters", {"max-bandwidth": 1 << 40}),
        ("getfd", {"fdname": "state"}),
        ("migrate", {"uri": "fd:state"}),
    ]
    assert monitor.descriptors == {"getfd": 7}
    (deadline,) = monitor.deadlines
    assert 0 < deadline.remaining_s() <= 120


def test_loading_the_whole_state_sends_the_expected_qmp_commands() -> None:
    monitor = FakeMonitor(events={"migrate-incoming": DONE})

    load_whole_state(monitor, "node", 7)

    assert monitor.calls == [
        ("migrate-set-capabilities", {"capabilities": WITH_MEMORY}),
        ("migrate-set-parameters", {"announce-rounds": 0}),
        ("getfd", {"fdname": "state"}),
        ("migrate-incoming", {"uri": "fd:state"}),
    ]
    assert monitor.descriptors == {"getfd": 7}


def test_existing_state_file_is_not_overwritten(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("of another machine")

    with pytest.raises(FileExistsError):
        save_device_state(FakeMonitor(events={"migrate": DONE}), "node", state)

    assert state.read_text() == "of another machine"


def test_event_for_the_end_of_an_earlier_migration_is_ignored(tmp_path: Path) -> None:
    monitor = FakeMonitor()
    monitor.recorded.append(DONE)

    with pytest.raises(DeviceStateError, match="the end of 'migrate' was not reported"):
        save_device_state(monitor, "node", tmp_path / "state")


def test_error_for_a_cancelled_load_has_the_machine_and_command_and_state_file(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    state.touch()
    monitor = FakeMonitor(events={"migrate-incoming": an_event("MIGRATION", status="cancelled")})

    with pytest.raises(
        DeviceStateError,
        match=rf"'node' .*'migrate-incoming' .*'{state}'\. The migration ended as 'cancelled'",
    ):
        load_device_state(monitor, "node", state)


def test_refused_migrate_command_raises_a_device_state_error(tmp_path: Path) -> None:
    state = tmp_path / "state"
    monitor = FakeMonitor({"migrate": HarnessError("Migration is disabled.")})

    with pytest.raises(DeviceStateError, match=rf"'{state}'\. Migration is disabled\."):
        save_device_state(monitor, "node", state)


def test_qemu_gets_a_read_only_descriptor_of_the_state_file(tmp_path: Path) -> None:
    """QEMU cannot write the file: all clones of a machine load the same file."""
    state = tmp_path / "state"
    state.write_text("saved")
    seen: list[tuple[int, bool]] = []

    class Reader(FakeMonitor):
        @override
        def execute(
            self,
            command: str,
            arguments: Mapping[str, object] | None = None,
            *,
            fd: int | None = None,
            limit_s: float = COMMAND_S,
        ) -> object:
            if fd is not None:
                flags = fcntl.fcntl(fd, fcntl.F_GETFL)
                seen.append((flags & os.O_ACCMODE, os.get_inheritable(fd)))
                assert os.fstat(fd).st_ino == state.stat().st_ino
            return super().execute(command, arguments, fd=fd, limit_s=limit_s)

    load_device_state(Reader(events={"migrate-incoming": DONE}), "node", state)

    assert seen == [(os.O_RDONLY, False)]


def test_lost_monitor_during_a_save_raises_a_monitor_lost_error(tmp_path: Path) -> None:
    monitor = FakeMonitor({"migrate": MonitorLostError("libvirtd ended.")})

    with pytest.raises(MonitorLostError, match=r"^libvirtd ended\.$"):
        save_device_state(monitor, "node", tmp_path / "state")


def test_state_is_packed_by_the_best_installed_compressor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed: set[str] = set()
    monkeypatch.setattr(
        shutil, "which", lambda name: f"/usr/bin/{name}" if name in installed else None
    )
    found = [suffix()]
    for tool in ("gzip", "zstd"):
        installed.add(tool)
        found.append(suffix())

    assert found == [".gz", ".gz", ".zst"]


def test_error_for_a_packed_state_mentions_the_missing_decompressor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monitor = FakeMonitor()
    for name, tool in (("memory.zst", "zstd"), ("memory.gz", "gzip")):
        with pytest.raises(
            HarnessError,
            match=rf"'{tmp_path / name}' can be unpacked only with '{tool}'.*apt-get install {tool}",
        ):
            restore_whole_state(monitor, "node", tmp_path / name)

    assert monitor.commands == []
