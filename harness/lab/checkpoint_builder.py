"""Makes the checkpoints of saved states, each by a machine that starts from its parent."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.errors import BadInputError, EvidencedError, HarnessError, RequirementError
from harness.lab.machine import NONCE_FACT
from harness.lab.saved_states import describe_clone, key_parts
from harness.machine.description.spec import MemoryFile
from harness.machine.guest_time import deadline_of_maker
from harness.provisioning.command import CommandError, LocalRunner
from harness.provisioning.wait import WaitTimeoutError
from harness.steps import stepped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.image.store import ImageStore
    from harness.lab.description import Platform
    from harness.lab.running_machines import Machines
    from harness.lab.saved_states import SavedState
    from harness.machine import VmDriver
    from harness.machine.checkpoint.store import Checkpoint, CheckpointPlace, CheckpointStore
    from harness.progress import ProgressListener

_MAKE_KVM_S = 120.0
_COPY_S = 120.0


@dataclass(kw_only=True)
class CheckpointBuilder:
    """Makes the checkpoints of a lab where the cache has none, and keeps them in use until `close`.

    `agent_digest` is the digest of the agent that runs in the saved machines. `needs` says for people which
    QEMU and processor a saved machine needs.
    """

    checkpoints: CheckpointStore
    images: ImageStore
    machines: Machines
    driver: VmDriver
    platform: Callable[[], Platform]
    agent_digest: str
    folder: Path
    evidence_folder: Path
    patience: float
    needs: Callable[[], Mapping[str, str]]
    listener: ProgressListener
    _held: dict[SavedState, Checkpoint] = field(init=False, default_factory=dict)
    _holding: threading.RLock = field(init=False, default_factory=threading.RLock)
    _resources: contextlib.ExitStack = field(init=False, default_factory=contextlib.ExitStack)

    def close(self) -> None:
        """Release the checkpoints."""
        self._held.clear()
        self._resources.close()

    def ensure_checkpoint(self, saved_state: SavedState) -> Checkpoint:
        """Return the checkpoint of a saved state."""
        with self._holding:
            if saved_state not in self._held:
                parent = (
                    None
                    if saved_state.parent is None
                    else self.ensure_checkpoint(saved_state.parent)
                )
                machine = describe_clone(saved_state, self.platform(), self.folder, parent)
                parts = {
                    **key_parts(saved_state, machine.spec, self.driver),
                    "agent": self.agent_digest,
                    "image_disk_sha256": saved_state.origin.disk_sha256(),
                }
                self._held[saved_state] = self._resources.enter_context(
                    self.checkpoints.use(
                        saved_state.name,
                        parts,
                        functools.partial(self._make, saved_state, parent),
                        memory_mib=saved_state.memory_mib,
                        parent=parent,
                        deadline=deadline_of_maker(_MAKE_KVM_S * self.patience),
                        listener=self.listener,
                        cancelled=self.machines.stop_reason,
                    )
                )
            return self._held[saved_state]

    @stepped("Make the checkpoint '{1.name}'")
    def _make(
        self, saved_state: SavedState, parent: Checkpoint | None, place: CheckpointPlace
    ) -> Mapping[str, str]:
        """Bring a machine to the saved state, save it in `place`, and return its facts."""
        if parent is None:
            origin = saved_state.origin
            self.images.create_overlay(origin.disk, place.disk, size_gib=origin.disk_gib)
        else:
            self.images.create_overlay(parent.disk, place.disk)
            copied = LocalRunner().run(
                ["cp", "--reflink=auto", "--sparse=always", str(parent.ram), str(place.ram)],
                timeout_s=_COPY_S,
            )
            copied.check(f"Copying the memory of '{parent.folder}'")
        _reserve(place.ram, saved_state.memory_mib)
        nonce = secrets.token_hex(16)
        description = describe_clone(
            saved_state,
            self.platform(),
            self.machines.new_folder(saved_state.name),
            parent,
            disk=place.disk,
            memory_file=MemoryFile(path=place.ram, is_private=False),
            seed=saved_state.origin.first_seed if parent is None else None,
        )
        with self.machines.created(description) as machine:
            try:
                with self.machines.registered(machine), machine:
                    if saved_state.make is None:
                        saved_state.origin.wait_until_booted(machine)
                    else:
                        saved_state.make(machine)
                    machine.save(place.state, nonce)
            except (BadInputError, RequirementError):
                raise
            except Exception as error:
                # Only a failure needs what reads evidence; a clone starts without it.
                from harness.lab.evidence_collection import (  # noqa: PLC0415
                    try_save_host_evidence,
                )

                sentence = _sentence_of(error)
                kept = self.evidence_folder / "saved-states" / saved_state.name
                raise HarnessError(
                    f"The saved state '{saved_state.name}' could not be made. {sentence}",
                    evidence=try_save_host_evidence(machine, kept),
                ) from error
        return {NONCE_FACT: hashlib.sha256(nonce.encode()).hexdigest(), **self.needs()}


def _sentence_of(error: Exception) -> str:
    if isinstance(error, EvidencedError):
        return error.sentence
    return str(error) if isinstance(error, (CommandError, WaitTimeoutError)) else repr(error)


def _reserve(ram: Path, memory_mib: int) -> None:
    """Allocate all blocks of a memory file: QEMU dies of SIGBUS at a page without one."""
    with ram.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, memory_mib << 20)
