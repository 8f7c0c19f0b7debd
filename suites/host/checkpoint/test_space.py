"""The disk space that a checkpoint takes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.machine.checkpoint.store import CheckpointPlace, CheckpointStore
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MIB = 1 << 20
MEMORY_MIB = 64
WRITTEN = b"\x5a" * MIB


def _make(place: CheckpointPlace) -> Mapping[str, str]:
    """Write a memory file as a machine does: all of it allocated, some of it written or zeroed."""
    with place.ram.open("wb") as ram:
        os.posix_fallocate(ram.fileno(), 0, MEMORY_MIB * MIB)
        ram.write(WRITTEN)
        ram.seek(8 * MIB)
        ram.write(bytes(4 * MIB))
    place.state.write_bytes(b"state")
    place.disk.write_bytes(b"disk")
    return {}


def test_memory_file_takes_disk_space_only_for_pages_that_are_not_zero(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", limit_mib=1024)

    with store.use(
        "booted", {}, _make, memory_mib=MEMORY_MIB, deadline=Deadline.after(60)
    ) as checkpoint:
        taken = checkpoint.ram.stat().st_blocks * 512
        assert taken <= 2 * MIB
        content = checkpoint.ram.read_bytes()

    assert content == WRITTEN + bytes((MEMORY_MIB - 1) * MIB)
