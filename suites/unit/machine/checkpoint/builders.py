"""A checkpoint store for tests, which counts the checkpoints that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.machine.checkpoint.store import Checkpoint, CheckpointPlace, CheckpointStore
from harness.provisioning.wait import Deadline
from suites.unit.machine.fake_copy import FakeCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.artifact_cache import ArtifactSource
    from harness.progress import ProgressEvent, Stage

MIB = 1 << 20
RAM_BYTES = 1 << 17
PLENTY = 1 << 40
FACTS = {"qemu": "7.2.22"}


class Cache:
    """A store in a temporary folder, the number of checkpoints made, and the reported progress.

    Each new checkpoint takes `blocks_mib` on the disk. `meanwhile` is called while it is made.
    """

    def __init__(
        self,
        top: Path,
        *,
        limit_mib: int = 1000,
        free_bytes: int = PLENTY,
        source: ArtifactSource | None = None,
    ) -> None:
        self.folder = top / "checkpoints"
        self.free_bytes = free_bytes
        self.copy = FakeCopy()
        self.events: list[ProgressEvent] = []
        self.made = 0
        self.blocks_mib = 0
        self.meanwhile: Callable[[CheckpointPlace], None] = lambda _place: None
        self.cancelled: Callable[[], str | None] = lambda: None
        self.store = CheckpointStore(
            self.folder,
            limit_mib=limit_mib,
            free_bytes=lambda _folder: self.free_bytes,
            runner=self.copy,
            source=source,
        )

    def use(
        self,
        name: str = "booted",
        parts: Mapping[str, object] | None = None,
        *,
        parent: Checkpoint | None = None,
        deadline: Deadline | None = None,
    ) -> AbstractContextManager[Checkpoint]:
        return self.store.use(
            name,
            {"image": "one"} if parts is None else parts,
            self._make,
            memory_mib=1024,
            parent=parent,
            deadline=deadline or Deadline.after(60),
            listener=self.events.append,
            cancelled=self.cancelled,
        )

    def have(self, name: str = "booted", *, parent: Checkpoint | None = None) -> Checkpoint:
        """Make the checkpoint if the store lacks it, and release it."""
        with self.use(name, parent=parent) as checkpoint:
            return checkpoint

    def have_two(self) -> tuple[Checkpoint, Checkpoint]:
        """Make a checkpoint and its child if the store lacks them, and release both."""
        with self.use("booted") as parent:
            return parent, self.have("baked", parent=parent)

    def _make(self, place: CheckpointPlace) -> Mapping[str, str]:
        self.made += 1
        with place.ram.open("wb") as ram:
            ram.truncate(RAM_BYTES)
            ram.seek(RAM_BYTES // 4)
            ram.write(f"memory {self.made}".encode() + b"\1" * (self.blocks_mib * MIB))
        place.state.write_text(f"state {self.made}")
        place.disk.write_text(f"disk {self.made}")
        (place.folder / "console.log").write_text("scratch")
        self.meanwhile(place)
        return FACTS

    def said(self, stage: Stage) -> list[str]:
        return [event.message for event in self.events if event.stage is stage]

    def names(self) -> list[str]:
        return [info.name for info in self.store.ls()]


def content_of(checkpoint: Checkpoint) -> str:
    return checkpoint.disk.read_text()
