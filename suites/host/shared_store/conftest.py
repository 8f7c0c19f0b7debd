"""Debian's registry behind the proxy that disturbs requests, and hosts that share the registry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.machine.checkpoint.store import Checkpoint, CheckpointPlace, CheckpointStore
from harness.provisioning.wait import Deadline
from harness.registry import RegistryLog
from harness.registry.proxy import RegistryProxy
from harness.registry.server import ensure_registry_program, running_registry
from harness.settings import Settings
from harness.shared_store import Address
from harness.shared_store.client import Patience, RegistryClient
from harness.shared_store.source import SharedCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from harness.progress import ProgressEvent, Stage

#: Content that is still large enough after compression to be cut in the middle.
MEMORY = b"".join(number.to_bytes(4, "big") * 3 + b"\x17" for number in range(60_000))


@dataclass
class Host:
    """A host with its own cache."""

    folder: Path
    shared: SharedCache
    events: list[ProgressEvent] = field(default_factory=list)
    made: int = 0

    @property
    def cache(self) -> Path:
        return self.folder / "checkpoints"

    def have(self, parts: Mapping[str, object] | None = None) -> Checkpoint:
        """Return the checkpoint from the cache, else from the shared store, else make it."""
        store = CheckpointStore(self.cache, limit_mib=1000, source=self.shared)
        with store.use(
            "booted",
            parts or {"qemu": "7.2", "image": "one"},
            self._make,
            memory_mib=16,
            deadline=Deadline.after(60),
            listener=self.events.append,
        ) as checkpoint:
            return checkpoint

    def _make(self, place: CheckpointPlace) -> Mapping[str, str]:
        self.made += 1
        with place.ram.open("wb") as ram:
            ram.truncate(8 << 20)
            ram.seek(5 << 20)
            ram.write(MEMORY)
        place.state.write_text(f"state of {self.folder.name}")
        place.disk.write_text("disk")
        return {"qemu": "QEMU 7.2", "processor": "any processor"}

    def said(self, stage: Stage) -> str:
        return "\n".join(event.message for event in self.events if event.stage is stage)

    def leftovers(self) -> list[str]:
        """Return all names in the cache except locks, which shows whether an incomplete artifact is left."""
        return [
            path.name
            for folder in (self.cache, self.cache / ".work")
            if folder.is_dir()
            for path in folder.iterdir()
            if not path.name.startswith(".")
        ]


@dataclass
class Shop:
    """A registry, its log, and its storage on the disk."""

    address: Address
    log: RegistryLog
    storage: Path
    top: Path

    def host(self, name: str, *, is_writable: bool = False) -> Host:
        folder = self.top / name
        client = RegistryClient(self.address, patience=Patience(tries=2, pause_s=0.01))
        shared = SharedCache(
            client=client,
            repository="checkpoints",
            partial=folder / "partial-pulls",
            is_writable=is_writable,
        )
        return Host(folder, shared)

    def blob(self) -> Path:
        """Return the largest blob in the registry's storage."""
        return max(self.storage.rglob("data"), key=lambda path: path.stat().st_size)


@pytest.fixture(scope="session")
def registry_program() -> tuple[str, ...]:
    try:
        return ensure_registry_program(Settings().cache, report=lambda _message: None)
    except RequirementError as error:
        pytest.skip(str(error))


@pytest.fixture
def shop(registry_program: tuple[str, ...], tmp_path: Path) -> Iterator[Shop]:
    log = RegistryLog()
    folder = tmp_path / "registry"
    with (
        running_registry(registry_program, folder) as server,
        RegistryProxy(server.connection, log) as proxy,
    ):
        yield Shop(
            address=Address.parse(f"http://127.0.0.1:{proxy.port}/gpu/ci"),
            log=log,
            storage=folder / "storage",
            top=tmp_path,
        )
