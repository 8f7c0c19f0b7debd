"""Makes the checkpoints of layers, each by a machine that begins from the one below."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.errors import BadInputError, EvidencedError, HarnessError, RequirementError
from harness.image import ImageEvent
from harness.lab.gathering import keep_remains
from harness.lab.layers import key_parts
from harness.lab.machine import NONCE_FACT
from harness.machine.spec import MemoryFile
from harness.provisioning.command import CommandError, LocalRunner
from harness.provisioning.wait import Deadline, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.image import ImageListener
    from harness.image.store import ImageStore
    from harness.lab.layers import Layer
    from harness.lab.machines import Machines
    from harness.machine import VmDriver
    from harness.machine.checkpoint import (
        Checkpoint,
        CheckpointEvent,
        CheckpointPlace,
        CheckpointStore,
    )
    from harness.machine.spec import MachineSpec

_LAYER_KVM_S = 120.0
_COPY_S = 120.0
#: Where nobody looks: the name of a disk that is not there yet.
_DISK = "disk.qcow2"


@dataclass(kw_only=True)
class Templates:
    """The checkpoints that a lab uses, made where the cache has none, and in use until the end.

    `spec_of` returns a layer's machine by its name, disk and folder, and `agent_digest` names the
    agent that its memory has.
    """

    checkpoints: CheckpointStore
    images: ImageStore
    machines: Machines
    driver: VmDriver
    spec_of: Callable[[Layer, str, Path, Path], MachineSpec]
    agent_digest: str
    folder: Path
    evidence_folder: Path
    patience: float
    listener: ImageListener
    _held: dict[Layer, Checkpoint] = field(init=False, default_factory=dict)
    _holding: threading.RLock = field(init=False, default_factory=threading.RLock)
    _resources: contextlib.ExitStack = field(init=False, default_factory=contextlib.ExitStack)

    def close(self) -> None:
        """Let go of the checkpoints."""
        self._held.clear()
        self._resources.close()

    def hold(self, layer: Layer) -> Checkpoint:
        """Return a layer's checkpoint."""
        with self._holding:
            if layer not in self._held:
                parent = None if layer.parent is None else self.hold(layer.parent)
                spec = self.spec_of(layer, layer.name, self.folder / _DISK, self.folder)
                parts = {
                    **key_parts(layer, spec, self.driver),
                    "agent": self.agent_digest,
                    "image_disk_sha256": layer.origin.disk_sha256(),
                }
                self._held[layer] = self._resources.enter_context(
                    self.checkpoints.use(
                        layer.name,
                        parts,
                        functools.partial(self._make, layer, parent),
                        memory_mib=layer.memory_mib,
                        parent=parent,
                        deadline=Deadline.after(_LAYER_KVM_S * self.patience),
                        listener=self._hear,
                        trouble=self.machines.unwanted,
                    )
                )
            return self._held[layer]

    def _hear(self, event: CheckpointEvent) -> None:
        self.listener(ImageEvent(image=event.checkpoint, stage=event.stage, message=event.message))

    def _make(
        self, layer: Layer, parent: Checkpoint | None, place: CheckpointPlace
    ) -> Mapping[str, str]:
        """Bring a machine to the layer's state, save it in `place`, and return its facts."""
        if parent is None:
            origin = layer.origin
            self.images.create_overlay(origin.disk, place.disk, size_gib=origin.disk_gib)
        else:
            self.images.create_overlay(parent.disk, place.disk)
            copied = LocalRunner().run(
                ["cp", "--reflink=auto", "--sparse=always", str(parent.ram), str(place.ram)],
                timeout_s=_COPY_S,
            )
            copied.check(f"Copying the memory of '{parent.folder}'")
        _reserve(place.ram, layer.memory_mib)
        nonce = secrets.token_hex(16)
        with self.machines.place(layer.name) as folder:
            spec = replace(
                self.spec_of(layer, layer.name, place.disk, folder),
                memory_file=MemoryFile(path=place.ram, is_private=False),
            )
            spec = layer.origin.prepare(spec, folder, is_first=parent is None)
            machine = self.machines.new(spec, folder, checkpoint=parent)
            try:
                with self.machines.accounted_for(machine), machine:
                    if layer.make is None:
                        layer.origin.settle(machine)
                    else:
                        layer.make(machine)
                    machine.save(place.state, nonce)
            except (BadInputError, RequirementError):
                raise
            except Exception as error:
                sentence = _sentence_of(error)
                kept = self.evidence_folder / "layers" / layer.name
                raise HarnessError(
                    f"The layer '{layer.name}' could not be made. {sentence}",
                    evidence=keep_remains(machine, kept),
                ) from error
        return {NONCE_FACT: hashlib.sha256(nonce.encode()).hexdigest()}


def _sentence_of(error: Exception) -> str:
    if isinstance(error, EvidencedError):
        return error.sentence
    return str(error) if isinstance(error, (CommandError, WaitTimeoutError)) else repr(error)


def _reserve(ram: Path, memory_mib: int) -> None:
    """Give a memory file all of its blocks: QEMU dies of SIGBUS at a page that finds none."""
    with ram.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, memory_mib << 20)
