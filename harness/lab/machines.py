"""Where a lab's machines are begun, and from where all of them can be ended at once."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from typing import TYPE_CHECKING

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.lab.gathering import keep_remains
from harness.lab.machine import LabMachine
from harness.lease import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.gpu import GpuModel
    from harness.gpu.script import GpuScript
    from harness.lab.machine import Equipment
    from harness.machine.checkpoint import Checkpoint
    from harness.machine.spec import MachineSpec

#: What a full driver build writes, with room to spare.
_OVERLAY_MIB = 1024


class Machines:
    """Makes machines in folders of their own below `folder`, out of one equipment."""

    def __init__(self, folder: Path, equipment: Equipment, *, evidence_folder: Path) -> None:
        self._folder = folder
        self._equipment = equipment
        self._evidence_folder = evidence_folder
        self._running: set[LabMachine] = set()
        self._is_abandoned = False

    @contextlib.contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """Give a machine a folder, which goes with it."""
        self._require_space()
        folder = make_private_folder(self._folder / f"{name}-{secrets.token_hex(3)}")
        try:
            yield folder
        finally:
            # An overlay holds hundreds of megabytes, and a run may boot many nodes.
            shutil.rmtree(folder, ignore_errors=True)

    def new(
        self,
        spec: MachineSpec,
        folder: Path,
        *,
        gpus: Sequence[GpuModel] = (),
        gpu_scripts: Mapping[str, GpuScript] | None = None,
        checkpoint: Checkpoint | None = None,
        hostname: str | None = None,
    ) -> LabMachine:
        """Return a machine that is yet to be started, by `running` or within `accounted_for`."""
        return LabMachine(
            spec,
            folder,
            self._equipment,
            gpus=gpus,
            gpu_scripts=gpu_scripts or {},
            checkpoint=checkpoint,
            hostname=hostname,
        )

    @contextlib.contextmanager
    def accounted_for(self, machine: LabMachine) -> Iterator[None]:
        """Let `abandon` end a machine, from before it starts."""
        self._running.add(machine)
        try:
            if self._is_abandoned:
                raise HarnessError(f"Machine '{machine.name}' is not wanted any more.")
            yield
        finally:
            self._running.discard(machine)

    @contextlib.contextmanager
    def running(
        self, machine: LabMachine, whole: contextlib.AbstractContextManager[object]
    ) -> Iterator[None]:
        """Start a machine by entering `whole`, itself or what it belongs to, and end it afterwards.

        What the host knows of one that does not start is kept, and the error says where.
        """
        with self.accounted_for(machine), contextlib.ExitStack() as started:
            try:
                started.enter_context(whole)
            except (BadInputError, RequirementError):
                raise
            except HarnessError as error:
                if error.evidence is None and not self._is_abandoned:
                    kept = self._evidence_folder / "starts" / machine.folder.name
                    error.evidence = keep_remains(machine, kept)
                raise
            yield

    def unwanted(self) -> str | None:
        """Say that nobody wants machines any more, or None."""
        return "No machine is wanted any more." if self._is_abandoned else None

    def abandon(self) -> None:
        """End every machine at once, from any thread; those who wait for one learn of it."""
        self._is_abandoned = True
        for machine in list(self._running):
            machine.kill()

    def _require_space(self) -> None:
        """Refuse to start a machine whose overlay would run out of space half-way."""
        free_mib = shutil.disk_usage(self._folder).free >> 20
        if free_mib < _OVERLAY_MIB:
            raise RequirementError(
                f"A node's overlay may take {_OVERLAY_MIB} MiB, but '{self._folder}' has only "
                f"{free_mib} MiB left; free some, or set XDG_CACHE_HOME to a larger disk."
            )
