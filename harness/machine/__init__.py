"""The protocols of a running VM, and of the VM driver that creates it.

Since both are protocols, callers do not depend on a particular driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.gpu import Attachment
    from harness.gpu.transport import Transport
    from harness.machine.accelerator import AcceleratorChoice
    from harness.machine.channels.agent import Agent
    from harness.machine.channels.console import Console
    from harness.machine.channels.event_log import QmpEvent
    from harness.machine.description.spec import Accelerator, MachineSpec
    from harness.provisioning.wait import Deadline
    from harness.settings import AcceleratorOption


class Machine(Protocol):
    """A running VM.

    A machine whose spec sets `is_restored` waits for `restore`. All other machines run
    immediately.
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
        """Return the log files of the machine's VM driver, by name."""

    @property
    def serial_log(self) -> Path: ...

    @property
    def pid(self) -> int | None:
        """Return the PID of QEMU, or None if QEMU does not run on this host."""

    @property
    def is_running(self) -> bool: ...

    def failure(self) -> str | None:
        """Return why this machine can't continue, or None."""

    def ssh_port(self) -> int:
        """Return the loopback port that leads to the guest's SSH server."""

    def plug(self, attachment: Attachment) -> None:
        """Hot-plug a device into the first free root port."""

    def unplug(self, device_id: str, deadline: Deadline) -> None:
        """Ask the guest to release a device, and wait until QEMU has removed it."""

    def plug_seed(self, seed: Path) -> None:
        """Hot-plug a seed volume into a machine that was started without a seed volume."""

    def unplug_seed(self, deadline: Deadline) -> None:
        """Unplug the seed volume, if the machine has a seed volume."""

    def wait_until_idle(self, deadline: Deadline) -> None:
        """Wait until the guest has nothing to do."""

    def save(self, state: Path) -> None:
        """Stop the guest, save its devices' state to the new file `state`, and end the machine."""

    def restore(self, state: Path) -> None:
        """Load the devices' state from `state`, and let the guest run."""

    def wait_for_power_off(self, deadline: Deadline) -> None:
        """Wait until the guest has powered itself off and its disk is complete."""

    def kill(self) -> None:
        """Kill the machine, from any thread. Threads that wait for the machine get an error."""


@runtime_checkable
class SavableMachine(Protocol):
    """A machine that can be saved while its test continues. Some drivers have no such machines."""

    def saved_whole(self, state: Path) -> AbstractContextManager[None]:
        """Save memory and devices to the new file `state`. The guest continues after the context.

        In the context the machine's disk is complete and does not change.
        """

    def restore_whole(self, state: Path) -> None:
        """Load memory and devices from the file `state`, and let the guest run."""


@runtime_checkable
class VmDriver(Protocol):
    """Creates machines. Each run has one VM driver."""

    @property
    def name(self) -> str: ...

    def choose_accelerator(self, option: AcceleratorOption) -> AcceleratorChoice:
        """Return the accelerator that `option` selects."""

    def transport(self, accelerator: Accelerator) -> Transport:
        """Return the transport that connects QEMU to emulated GPUs.

        Raises RequirementError if QEMU supports no transport. The message names a suitable QEMU.
        """

    def state_parts(self, spec: MachineSpec) -> Mapping[str, object]:
        """Return everything on which a saved state of the machine `spec` depends, except files.

        Raises RequirementError if machines can't be saved and restored.
        """

    def machine(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[Attachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> AbstractContextManager[Machine]:
        """Return a machine that starts and ends with its `with` block.

        The attachments are plugged before the guest's first instruction.
        """
