"""Starts, reboots and ends one machine of a lab."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.lab.machine_cloud_init import MachineCloudInit
from harness.lab.machine_entrance import open_entrance
from harness.lab.machine_saving import MachineSaving
from harness.machine.capacity.broker import Demand
from harness.machine.entrance.roster import purpose_of_process
from harness.machine.guest_time import GuestClock, GuestDeadline
from harness.progress import Stage
from harness.progress.activities import watched
from harness.provisioning.wait import (
    Deadline,
    Observation,
    WaitTimeoutError,
    wait_for,
)
from harness.steps import stepped, take_step

if TYPE_CHECKING:
    from typing_extensions import Self

    from harness.machine.checkpoint.store import Checkpoint


_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: Seconds after which a delay of the guest is attributed to its GPU.
_NOTICED_S = 1.0
#: MiB of memory that QEMU needs in addition to the guest's memory.
_QEMU_MIB = 128
_CAPACITY_S = 900.0


class LabMachine(MachineCloudInit, MachineSaving):
    """A running machine, which ends with its `with` block.

    If its description has no checkpoint, the machine boots with the GPUs in their slots. If its
    description has a checkpoint, the machine continues from the checkpoint, and the GPUs are
    plugged in as soon as the machine runs.
    """

    @stepped("Start machine '{0.name}'")
    def __enter__(self) -> Self:
        try:
            self._resources.enter_context(watched(self._activity))
            words = f"runs for {purpose_of_process(sys.argv)}"
            self._resources.enter_context(self._activity.during(words, stage=Stage.RUNS))
            with self._activity.during(self._start_words):
                self._start()
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._resources.close()

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint from which the machine continues, or None if the machine boots."""
        return self.description.checkpoint

    @property
    def _start_words(self) -> str:
        size = f"with {self.spec.memory_mib} MiB"
        image = self.description.source.name
        if self.checkpoint is not None:
            return f"continues from a checkpoint of '{image}' {size}"
        return f"{'boots' if self.description.bundle is None else 'resumes'} '{image}' {size}"

    def _start(self) -> None:
        services = self._services
        # The GPUs are closed after the VM: otherwise the guest would see its GPUs vanish.
        self._resources.callback(self.gpus.close)
        # GPUs are reserved before capacity: a machine must not hold capacity while it waits for
        # GPUs.
        gpus = self.gpus.provide(
            self.description.gpus, report=services.report, cancelled=self._stop_reason
        )
        with take_step("Reserve memory and cores of the host"):
            reservation = self._resources.enter_context(
                services.broker.reserve(
                    self.name,
                    Demand(memory_mib=self.spec.memory_mib + _QEMU_MIB, cpus=self.spec.cpus),
                    deadline=Deadline.after(_CAPACITY_S),
                    report=services.report,
                    cancelled=self._stop_reason,
                )
            )
        is_continued = self.description.is_continued
        at_start = () if is_continued else gpus
        attachments = [gpu.attachment for gpu in at_start]
        with take_step("Start the VM"):
            self._vm = self._resources.enter_context(
                services.driver.machine(
                    self.spec, self.folder, attachments, agent_program=self.agent_program
                )
            )
        if self._vm.pid is not None:
            reservation.used_by(self._vm.pid)
        self._listing = self._resources.enter_context(
            open_entrance(
                self._vm,
                self.folder,
                identity=services.identity,
                roster=services.roster,
                gpus=[gpu.title for gpu in gpus],
                until=self.description.kept_until,
            )
        )
        self._resources.enter_context(self._vm.console.tapped(self._activity.hear))
        self._vm.agent.link.explain_delay = lambda: self.gpus.stall_report(_NOTICED_S)
        if self._vm.pid is not None:
            guest_clock = self._guest_clock = GuestClock(self._vm.pid)
            self._vm.agent.link.guest_deadline = functools.partial(GuestDeadline.of, guest_clock)
            self._resources.enter_context(self._vm.console.tapped(guest_clock.hear))
        if why := self._stop_reason():
            raise HarnessError(why)
        if self.checkpoint is not None:
            self._restore(self.checkpoint)
        elif self.description.bundle is not None:
            self._resume(self.description.bundle)
        if is_continued:
            for gpu in gpus:
                with take_step(f"Plug {gpu.device_id}, {gpu.title}"):
                    self._vm.plug(gpu.attachment)

    @stepped("Reboot machine '{0.name}'")
    def reboot(self, deadline: Deadline) -> None:
        """Reboot the guest within its machine, and wait until its agent answers again.

        A machine can reboot if it boots by firmware, or if the request of its node sets
        `may_reboot`. Other machines end when their guest reboots. Raises HarnessError if the agent
        does not answer in time.
        """
        if not self.spec.may_reboot:
            raise HarnessError(
                f"Machine '{self.name}' boots a kernel that QEMU loads, so the machine ends when its guest "
                "reboots; boot the machine by firmware, or request the node with 'may_reboot'."
            )
        before = self.guest.output_of("cat", _BOOT_ID)
        # The guest may go down before the answer arrives.
        with contextlib.suppress(HarnessError):
            self.guest.run("systemctl", "--no-block", "reboot")

        def poll() -> Observation[str]:
            if reason := self.failure():
                raise HarnessError(
                    f"Machine '{self.name}' did not come back from its reboot: {reason}"
                )
            if not self.vm.is_running:
                raise HarnessError(
                    f"Machine '{self.name}' did not come back from its reboot: QEMU has ended."
                )
            try:
                now = self.guest.output_of(
                    "cat", _BOOT_ID, timeout_s=max(1.0, deadline.remaining_s())
                )
            except HarnessError as error:
                return Observation(None, str(error))
            return Observation(None if now == before else now, "its guest is still shutting down")

        try:
            with self._activity.during("waits for its guest to reboot", deadline):
                wait_for(
                    f"machine '{self.name}' to come back from its reboot",
                    poll,
                    deadline,
                    interval_s=0.5,
                )
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} Its serial console ends with:\n{self.vm.console.tail()}"
            ) from error

    def kill(self) -> None:
        """Kill the machine, from any thread. Threads that wait for the machine get an error."""
        self._is_killed = True
        if self._vm is not None:
            self._vm.kill()
