"""The host's channels to a machine: to its VM, and to the agent and SSH server of its guest."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.machine.channels.guest import Guest
from harness.machine.channels.ssh import SshRunner
from harness.machine.description.spec import DirectKernel
from harness.machine.guest_time import GuestClock, GuestDeadline
from harness.provisioning.wait import (
    Deadline,
)
from harness.steps import stepped, take_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.evidence.state import NodeState
    from harness.gpu.transport import Transport
    from harness.lab.description import MachineDescription
    from harness.lab.gpu_sources import GpuSources
    from harness.machine import Machine, VmDriver
    from harness.machine.capacity.broker import Broker
    from harness.machine.channels.agent import Agent
    from harness.machine.channels.ssh import SshIdentity
    from harness.machine.entrance.roster import Roster
    from harness.progress.activities import Activities


#: The name of the subfolder with differences between node states, in a machine's folder and in the
#: machine's evidence.
STATES = "states"
#: Time limits in seconds under KVM; `MachineServices.patience` multiplies these limits under TCG.
CONNECT_KVM_S = 10.0
READY_KVM_S = 30.0
HOT_PLUG_KVM_S = 10.0
#: Seconds under KVM within which a guest that does not hang answers.
ANSWER_KVM_S = 1.0
#: Seconds under KVM until the agent is ready after a boot by firmware. This time includes the boot
#: loader's delay, and cloud-init's stages up to the stage that installs the agent.
_READY_BY_FIRMWARE_KVM_S = 90.0
#: Seconds under KVM within which a busy agent answers.
_BUSY_ANSWER_KVM_S = 3.0
_STATE_KVM_S = 30.0


@dataclass(frozen=True, kw_only=True)
class MachineServices:
    """The services that all machines of a lab share.

    `driver` starts the VM. `identity` generates the SSH keys at its first call. `transport` raises
    RequirementError if QEMU does not support emulated GPUs. The time limits of a guest are for KVM
    on bare metal. `patience` multiplies these limits. `report` is called with the reason while a
    machine waits for capacity, or for GPUs of the host. `roster` lists the machines that run, for
    `harness ps`. `activities` reports what those machines do.
    """

    driver: VmDriver
    agent_program: bytes = field(repr=False)
    identity: Callable[[], SshIdentity]
    broker: Broker
    transport: Callable[[], Transport]
    gpu_sources: GpuSources
    patience: float
    roster: Roster
    report: Callable[[str], None]
    activities: Activities


class GuestChannels:
    """The VM of a machine, and the channels to its guest. A subclass starts and ends both."""

    def __init__(self, description: MachineDescription, services: MachineServices) -> None:
        self.description = description
        self.spec = description.spec
        self.folder = description.folder
        self._services = services
        self._resources = contextlib.ExitStack()
        self._ssh: SshRunner | None = None
        self._is_agent_ready = False
        self._is_killed = False
        self._vm: Machine | None = None
        self._guest_clock: GuestClock | None = None
        self._activity = services.activities.of(self.folder.name)
        self.last_state: NodeState | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def has_vm(self) -> bool:
        """Return whether the VM was started, even if the VM has ended since."""
        return self._vm is not None

    @property
    def vm(self) -> Machine:
        """Return the VM itself. Raises HarnessError if the VM has not been started yet."""
        if self._vm is None:
            raise HarnessError(f"Machine '{self.name}' has not been started.")
        return self._vm

    @property
    def agent_program(self) -> bytes:
        """Return the agent's program. A resumed guest runs the agent of its bundle."""
        bundle = self.description.bundle
        return self._services.agent_program if bundle is None else bundle.agent_program

    @property
    def agent(self) -> Agent:
        """Return the guest's agent. The first use in a booted machine waits for the agent."""
        if not self._is_agent_ready:
            patience_s = READY_KVM_S if self._is_built else _READY_BY_FIRMWARE_KVM_S
            deadline = self.deadline(patience_s)
            with (
                take_step(f"Wait for the agent of machine '{self.name}'"),
                self._activity.during("waits for the guest agent", deadline),
            ):
                self.vm.agent.wait_until_ready(deadline)
            self._is_agent_ready = True
        return self.vm.agent

    def require_answer(self) -> None:
        """Raise HarnessError if the guest does not answer within seconds: it hangs or still boots."""
        self.vm.agent.ping(self.deadline(_BUSY_ANSWER_KVM_S))

    @property
    def _is_built(self) -> bool:
        """Return whether the image was built, and therefore has the agent and a serial console."""
        kernel = self.spec.kernel
        return isinstance(kernel, DirectKernel) and not kernel.is_verbatim

    @property
    def guest(self) -> Guest:
        """Return the guest, to run commands and read files in it."""
        return Guest(self.name, self.agent)

    @stepped("Take the state of machine '{0.name}'")
    def state(self) -> NodeState:
        """Return the state of the whole guest for `expect.unchanged`. The guest should be idle.

        Parts that can't be read are `unknown` in the result. Raises HarnessError if the guest does
        not answer.
        """
        from harness.evidence.state_capture import take_state  # noqa: PLC0415 - rarely needed

        self.last_state = take_state(
            self.agent,
            node=self.name,
            deadline=self.deadline(_STATE_KVM_S),
            folder=self.folder / STATES,
        )
        return self.last_state

    def ssh(self) -> SshRunner:
        """Return SSH access, for people and for machines without an agent.

        The guest must have been provisioned with the lab's keys. The first use opens the
        connection, which ends with the machine.
        """
        if self._ssh is None:
            runner = SshRunner(
                name=self.name,
                port=self.vm.ssh_port(),
                identity=self._services.identity(),
                folder=self.folder,
            )
            self._resources.callback(runner.close)
            runner.connect(self.deadline(CONNECT_KVM_S))
            self._ssh = runner
        return self._ssh

    def doing(self, what: str, deadline: Deadline) -> contextlib.AbstractContextManager[None]:
        """Report that the machine does `what`, until the context ends or `deadline` passes."""
        return self._activity.during(what, deadline)

    def deadline(self, kvm_s: float, *, follows_progress: bool = False) -> Deadline:
        """Return a deadline of `kvm_s` seconds, multiplied by `MachineServices.patience`.

        The limit does not include time in which the host keeps the machine waiting. With
        `follows_progress`, the deadline is extended while the guest prints lines.
        """
        return self._after(kvm_s * self._services.patience, follows_progress=follows_progress)

    def busy_host(self) -> str:
        """Return a clause if the host kept the machine waiting for half of the time or longer, else ""."""
        return "" if self._guest_clock is None else self._guest_clock.busy_host()

    def time_stretch(self) -> float:
        """Return how many seconds pass on the host while the guest runs for one second."""
        return 1.0 if self._guest_clock is None else self._guest_clock.stretch()

    def _after(self, seconds: float, *, follows_progress: bool = False) -> Deadline:
        if self._guest_clock is None:
            return Deadline.after(seconds)
        return GuestDeadline.of(self._guest_clock, seconds, follows_progress=follows_progress)

    def _stop_reason(self) -> str | None:
        return (
            f"Machine '{self.name}' was killed, since the run is being ended."
            if self._is_killed
            else None
        )
