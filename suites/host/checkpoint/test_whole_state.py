"""Memory and devices of a machine through a real compressor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.errors import HarnessError
from harness.machine.channels.monitor import COMMAND_S
from harness.machine.device_state import DeviceStateError
from harness.machine.whole_state import restore_whole_state, save_whole_state
from suites.unit.machine.fake_monitor import FakeMonitor, an_event

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MEMORY = b"guest memory " * 20_000


class FakeQemu(FakeMonitor):
    """Writes its memory to the descriptor that it is given, or reads it from there."""

    def __init__(self, *, status: str = "completed") -> None:
        event = an_event("MIGRATION", status=status)
        super().__init__(events={"migrate": event, "migrate-incoming": event})
        self.loaded = b""
        self._descriptor = -1

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
            self._descriptor = os.dup(fd)
        if command == "migrate":
            with os.fdopen(self._descriptor, "wb") as stream:
                stream.write(MEMORY)
        if command == "migrate-incoming":
            with os.fdopen(self._descriptor, "rb") as stream:
                self.loaded = stream.read()
        return super().execute(command, arguments, fd=fd, limit_s=limit_s)


@pytest.mark.parametrize("suffix", [".zst", ".gz"])
def test_what_was_saved_is_restored(tmp_path: Path, suffix: str) -> None:
    state = tmp_path / f"memory{suffix}"
    save_whole_state(FakeQemu(), "node", state)
    restored = FakeQemu()

    restore_whole_state(restored, "node", state)

    assert restored.loaded == MEMORY
    assert state.stat().st_size < len(MEMORY) // 10
    assert state.stat().st_mode & 0o777 == 0o600


def test_state_that_qemu_does_not_save_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceStateError, match="It ended as 'failed'"):
        save_whole_state(FakeQemu(status="failed"), "node", tmp_path / "memory.gz")


def test_full_disk_is_an_error(tmp_path: Path) -> None:
    state = tmp_path / "memory.gz"
    state.symlink_to("/dev/full")

    with pytest.raises((HarnessError, OSError)):
        save_whole_state(FakeQemu(), "node", state)
