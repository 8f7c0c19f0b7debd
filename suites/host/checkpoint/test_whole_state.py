"""Memory and devices of a machine through a real compressor."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.errors import HarnessError
from harness.machine import device_state as whole_state
from harness.machine.channels.monitor import COMMAND_S
from harness.machine.device_state import DeviceStateError, restore_whole_state, save_whole_state
from suites.unit.machine.fake_monitor import FakeMonitor, an_event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import IO

MEMORY = b"guest memory " * 20_000


class FakeQemu(FakeMonitor):
    """A fake QEMU that saves its memory to a file descriptor, or loads its memory from one."""

    def __init__(
        self, *, status: str = "completed", meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        event = an_event("MIGRATION", status=status)
        super().__init__(events={"migrate": event, "migrate-incoming": event})
        self.loaded = b""
        self._meanwhile = meanwhile
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
            self._meanwhile()
            self._descriptor = os.dup(fd)
        if command == "migrate":
            # A closed pipe raises no error here; the event at the end reports an incomplete migration.
            with (
                contextlib.suppress(BrokenPipeError),
                os.fdopen(self._descriptor, "wb") as stream,
            ):
                stream.write(MEMORY)
        if command == "migrate-incoming":
            with os.fdopen(self._descriptor, "rb") as stream:
                self.loaded = stream.read()
        return super().execute(command, arguments, fd=fd, limit_s=limit_s)


@pytest.mark.parametrize("suffix", [".zst", ".gz"])
def test_saved_state_is_restored(tmp_path: Path, suffix: str) -> None:
    state = tmp_path / f"memory{suffix}"
    save_whole_state(FakeQemu(), "node", state)
    restored = FakeQemu()

    restore_whole_state(restored, "node", state)

    assert restored.loaded == MEMORY
    assert state.stat().st_size < len(MEMORY) // 10
    assert state.stat().st_mode & 0o777 == 0o600


def test_descriptors_that_a_thread_opens_during_a_restore_stay_open(tmp_path: Path) -> None:
    """The thread gets descriptor numbers that the restore has just closed."""
    opened: list[IO[bytes]] = []

    def open_many() -> None:
        opened.extend((tmp_path / "of another thread").open("wb") for _ in range(8))

    save_whole_state(FakeQemu(meanwhile=open_many), "node", tmp_path / "memory.gz")
    restore_whole_state(FakeQemu(meanwhile=open_many), "node", tmp_path / "memory.gz")

    for file in opened:
        file.write(b"still here")
        file.close()


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_save_raises_an_error_if_qemu_fails_to_migrate(tmp_path: Path, status: str) -> None:
    with pytest.raises(
        DeviceStateError,
        match=rf"'node' .*'migrate' with a stream of .*The migration ended as '{status}'",
    ):
        save_whole_state(FakeQemu(status=status), "node", tmp_path / "memory.gz")


def test_restore_raises_an_error_if_qemu_fails_to_load_the_state(tmp_path: Path) -> None:
    state = tmp_path / "memory.gz"
    save_whole_state(FakeQemu(), "node", state)

    with pytest.raises(
        DeviceStateError,
        match=r"'node' .*'migrate-incoming' with a stream of .*The migration ended as 'failed'",
    ):
        restore_whole_state(FakeQemu(status="failed"), "node", state)


def test_existing_state_is_not_overwritten(tmp_path: Path) -> None:
    state = tmp_path / "memory.gz"
    state.write_text("of another machine")

    with pytest.raises(FileExistsError):
        save_whole_state(FakeQemu(), "node", state)

    assert state.read_text() == "of another machine"


@pytest.fixture
def compressor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the program that replaces the compressor; the test writes the program."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    program = folder / "gzip"
    program.touch(mode=0o755)
    return program


def test_error_about_a_failed_compressor_mentions_a_full_disk_as_the_usual_cause(
    tmp_path: Path, compressor: Path
) -> None:
    compressor.write_text("#!/bin/sh\ncat >/dev/null\nexit 2\n")
    state = tmp_path / "memory.gz"

    with pytest.raises(HarnessError) as failed:
        save_whole_state(FakeQemu(), "node", state)

    assert str(failed.value) == (
        f"Packing the memory of machine 'node' into '{state}' failed with exit code 2; check "
        "whether the disk of this file is full."
    )


def test_save_error_reports_the_exit_code_of_the_failed_compressor(
    tmp_path: Path, compressor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, QEMU itself only reports that its pipe has no reader."""
    monkeypatch.setattr(whole_state, "_FAILED_S", 60.0)
    compressor.write_text("#!/bin/sh\nexit 1\n")
    state = tmp_path / "memory.gz"

    with pytest.raises(HarnessError) as failed:
        save_whole_state(FakeQemu(status="failed"), "node", state)

    assert str(failed.value) == (
        f"Packing the memory of machine 'node' into '{state}' failed with exit code 1; check "
        "whether the disk of this file is full."
    )


def test_error_of_qemu_is_reported_even_if_the_compressor_still_runs(
    tmp_path: Path, compressor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_state, "_FAILED_S", 0.0)
    compressor.write_text("#!/bin/sh\ncat >/dev/null\nexec sleep 600\n")

    with pytest.raises(DeviceStateError, match=r"The migration ended as 'failed'\."):
        save_whole_state(FakeQemu(status="failed"), "node", tmp_path / "memory.gz")


def test_compressor_that_hangs_is_killed_and_reported(
    tmp_path: Path, compressor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_id = tmp_path / "process id"
    compressor.write_text(f"#!/bin/sh\necho $$ >'{process_id}'\ncat >/dev/null\nexec sleep 600\n")
    monkeypatch.setattr(whole_state, "_END_S", 0.0)
    state = tmp_path / "memory.gz"

    with pytest.raises(HarnessError) as waited:
        save_whole_state(FakeQemu(), "node", state)

    assert str(waited.value).endswith(
        f" s for the memory of machine 'node' to be packed into '{state}'; last seen: it is still "
        "running."
    )
    # The memory does not fit into a pipe, so the compressor has started and written its process id.
    assert not Path("/proc", process_id.read_text().strip()).exists()
