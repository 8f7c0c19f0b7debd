"""A VM with a life cycle, and the driver that makes one.

What runs a machine stands behind two protocols, and nobody above a driver knows which it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.gpu import GpuAttachment
    from harness.gpu.transport import Transport
    from harness.machine.accelerator import AcceleratorChoice
    from harness.machine.agent import Agent
    from harness.machine.console import Console
    from harness.machine.eventlog import QmpEvent
    from harness.machine.spec import Accelerator, MachineSpec
    from harness.provisioning.wait import Deadline


class Machine(Protocol):
    """A running VM, as whoever begun it holds it.

    One whose spec says `is_restored` waits for `restore`; any other one runs at once.
    """

    @property
    def spec(self) -> MachineSpec: ...

    @property
    def console(self) -> Console: ...

    @property
    def agent(self) -> Agent: ...

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        """Return QEMU's events so far, oldest first."""

    @property
    def logs(self) -> Mapping[str, Path]:
        """Return the files in which the machine's driver keeps what was said, by their names."""

    @property
    def serial_log(self) -> Path: ...

    @property
    def pid(self) -> int | None:
        """Return the id of QEMU's process, None where it is not one of this host."""

    @property
    def is_running(self) -> bool: ...

    def trouble(self) -> str | None:
        """Say why this machine will not go on, or None."""

    def ssh_port(self) -> int:
        """Return the loopback port that leads to the guest's SSH server."""

    def plug(self, attachment: GpuAttachment) -> None:
        """Hot-plug a device into the first free root port."""

    def unplug(self, device_id: str, deadline: Deadline) -> None:
        """Ask the guest to let go of a device, and wait until it has."""

    def plug_seed(self, seed: Path) -> None:
        """Hot-plug a seed volume, where the machine was started without one."""

    def unplug_seed(self, deadline: Deadline) -> None:
        """Take the seed volume out again, where there is one."""

    def wait_until_idle(self, deadline: Deadline) -> None:
        """Wait until the guest has nothing to do."""

    def save(self, state: Path) -> None:
        """Stop the guest, save its devices' state to the new file `state`, and end it."""

    def restore(self, state: Path) -> None:
        """Load the devices' state from `state`, and let the guest go on."""

    def wait_for_power_off(self, deadline: Deadline) -> None:
        """Wait until the guest has powered itself off, its disk complete."""

    def kill(self) -> None:
        """End the machine at once, from any thread; who waits for it learns of that."""


class VmDriver(Protocol):
    """What makes machines; one for each run."""

    @property
    def name(self) -> str: ...

    def choose_accelerator(self, choice: str) -> AcceleratorChoice:
        """Return how guests run, as 'auto', 'kvm' or 'tcg' asks."""

    def transport(self, accelerator: Accelerator) -> Transport:
        """Return the way by which machines take an emulated GPU without harm.

        Raises RequirementError where there is none, with what would do.
        """

    def has_vcpu_threads(self, spec: MachineSpec) -> bool:
        """Tell whether the machine's vCPUs run at once: two can touch one GPU's socket."""

    def state_parts(self, spec: MachineSpec) -> Mapping[str, object]:
        """Return all that a saved state of such a machine depends on beside its files.

        Raises RequirementError where machines can't be saved, or not begun from what was.
        """

    def machine(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[GpuAttachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> AbstractContextManager[Machine]:
        """Return a machine that starts with its `with` block, and ends with it.

        The attachments are there from the guest's first instruction on.
        """
