"""Creates a lab's machines, and can end all of them together."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from typing import TYPE_CHECKING, TypeVar

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.lab.description import create_files
from harness.lab.machine import LabMachine
from harness.lease import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.image.store import ImageStore
    from harness.lab.description import MachineDescription
    from harness.lab.guest_channels import MachineServices

Started = TypeVar("Started")

#: MiB of disk space for an overlay: more than a complete driver build writes.
_OVERLAY_MIB = 1024


@contextlib.contextmanager
def host_evidence_kept(
    machine: LabMachine, folder: Path, *, unless: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """On failure, keep the host's evidence of a machine in `folder`. The error names the folder.

    No evidence is kept for bad input, missing requirements, and errors that already name evidence.
    """
    try:
        yield
    except (BadInputError, RequirementError):
        raise
    except HarnessError as error:
        # The import is inside the function, because loading the readers of evidence would delay a
        # clone, and only a failure needs them.
        from harness.lab.evidence_collection import try_save_host_evidence  # noqa: PLC0415

        if error.evidence is None and not unless():
            error.evidence = try_save_host_evidence(machine, folder)
        raise


class Machines:
    """Creates the machines of a lab, each in its own folder below `folder`."""

    def __init__(
        self,
        folder: Path,
        services: MachineServices,
        *,
        images: ImageStore,
        evidence_folder: Path,
    ) -> None:
        self._folder = folder
        self._services = services
        self._images = images
        self._evidence_folder = evidence_folder
        self._running: set[LabMachine] = set()
        self._is_stopping = False

    def new_folder(self, name: str) -> Path:
        """Return the path for the folder of a new machine. `created` makes the folder."""
        return self._folder / f"{name}-{secrets.token_hex(3)}"

    @contextlib.contextmanager
    def created(self, description: MachineDescription) -> Iterator[LabMachine]:
        """Create a machine and its files. The caller starts the machine within `registered`.

        The machine's folder is removed at the end of the context.
        """
        self._require_space()
        folder = description.folder
        make_private_folder(folder)
        try:
            create_files(description, self._images)
            yield LabMachine(description, self._services)
        finally:
            # An overlay may be hundreds of megabytes large, and a run may boot many nodes.
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def registered(self, machine: LabMachine) -> Iterator[None]:
        """Register a machine before it starts, so that `kill_all` can end it."""
        self._running.add(machine)
        try:
            if self._is_stopping:
                raise HarnessError(
                    f"Machine '{machine.name}' is not started: the run is being ended."
                )
            yield
        finally:
            self._running.discard(machine)

    def running(
        self, description: MachineDescription
    ) -> contextlib.AbstractContextManager[LabMachine]:
        """Create and start a machine, and end the machine afterwards."""
        return self.started(description, lambda machine: machine)

    @contextlib.contextmanager
    def started(
        self,
        description: MachineDescription,
        wrapped: Callable[[LabMachine], contextlib.AbstractContextManager[Started]],
    ) -> Iterator[Started]:
        """Create a machine, start it by entering the result of `wrapped`, and end it afterwards.

        If the machine does not start, the host's evidence is kept, and the error names the folder
        of that evidence.
        """
        with (
            self.created(description) as machine,
            self.registered(machine),
            contextlib.ExitStack() as resources,
        ):
            kept = self._evidence_folder / "starts" / machine.folder.name
            with host_evidence_kept(machine, kept, unless=lambda: self._is_stopping):
                started = resources.enter_context(wrapped(machine))
            yield started

    def stop_reason(self) -> str | None:
        """Return a reason to stop waiting if `kill_all` was called, or None."""
        return "The run is being ended." if self._is_stopping else None

    def kill_all(self) -> None:
        """Kill every machine, from any thread. Threads that wait for a machine get an error."""
        self._is_stopping = True
        for machine in list(self._running):
            machine.kill()

    def _require_space(self) -> None:
        """Raise RequirementError if an overlay would run out of disk space."""
        free_mib = shutil.disk_usage(self._folder).free >> 20
        if free_mib < _OVERLAY_MIB:
            raise RequirementError(
                f"A node's overlay may need {_OVERLAY_MIB} MiB, but '{self._folder}' has only "
                f"{free_mib} MiB left; free some space, or set XDG_CACHE_HOME to a folder on a larger "
                "disk."
            )
