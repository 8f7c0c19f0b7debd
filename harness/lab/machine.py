"""A machine of a lab: a VM with its emulated GPUs, its guest's agent, and its checkpoint.

The module is long because all of it is the life of that one machine.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.cloudinit import FINISHED, SEED_LABEL, write_seed
from harness.errors import HarnessError, listed
from harness.lab.base_images import describe_base
from harness.lab.description import SEED
from harness.lab.machine_entrance import open_entrance
from harness.lab.machine_gpus import MachineGpus
from harness.machine import SavableMachine
from harness.machine.capacity.broker import Demand
from harness.machine.channels.guest import Guest
from harness.machine.channels.ssh import SshRunner
from harness.machine.description.spec import DirectKernel
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
from harness.steps import consecutive, stepped, take_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from typing_extensions import Self

    from harness.cloudinit import CloudInitResult, SeedFiles
    from harness.evidence.state import NodeState
    from harness.gpu import GpuModel
    from harness.gpu.emulated import EmulatedGpu
    from harness.gpu.trace import AccessTrace
    from harness.gpu.transport import Transport
    from harness.lab.description import MachineDescription
    from harness.lab.gpu_sources import GpuSources, RequestedGpu
    from harness.lab.machine_bundle import MachineBundle
    from harness.lab.machine_entrance import Listing
    from harness.machine import Machine, VmDriver
    from harness.machine.capacity.broker import Broker
    from harness.machine.channels.agent import Agent
    from harness.machine.channels.ssh import SshIdentity
    from harness.machine.checkpoint.store import Checkpoint
    from harness.machine.entrance.roster import Roster
    from harness.progress.activities import Activities

#: The key of the nonce's digest in a checkpoint's facts; the nonce itself is only in guest memory.
NONCE_FACT = "nonce_sha256"

#: The folder of differences between states, in a machine's folder and in its evidence.
STATES = "states"

#: The device files of single GPUs, which `/dev/nvidiactl` is not.
GPU_DEVICE_FILES = "/dev/nvidia[0-9]*"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: A function in each line; the second column has vendor and device, as in `10de2330`.
_PCI_FUNCTIONS = "/proc/bus/pci/devices"

#: Seconds that KVM is given; TCG gets them times its patience.
_CONNECT_KVM_S = 10.0
_READY_KVM_S = 30.0
#: Includes the boot loader's delay, and cloud-init up to the network, which brings the agent.
_READY_BY_FIRMWARE_KVM_S = 90.0
_HOT_PLUG_KVM_S = 10.0
#: How long a hot-plugged GPU may take to get its addresses before the guest is asked what it lists.
_PLACED_KVM_S = 1.0
#: A guest that is not hanging answers within this.
_ANSWER_KVM_S = 1.0
#: One that is busy answers within this.
_BUSY_ANSWER_KVM_S = 3.0
_CLOUD_INIT_KVM_S = 30.0
#: It runs all modules of the distribution.
_CLOUD_INIT_OF_CLOUD_IMAGE_KVM_S = 90.0
_STATE_KVM_S = 30.0
#: Cloud-init's own message ends a run with user-data that it can't read.
_END = rf"(?:{FINISHED}|Cloud-init v\. \S+ finished at)"
#: Progress on the console: the stages of cloud-init.
_STAGE = r"running '[a-z:-]+'"
_STAGE_NAME = re.compile(r"running '([a-z:-]+)'")
#: Seconds after which a guest that is blocked on its GPU counts as stuck.
_STALL_S = 60.0
#: Seconds after which a delay of the guest is attributed to its GPU.
_NOTICED_S = 1.0
#: QEMU's memory in addition to the guest's.
_QEMU_MIB = 128
_CAPACITY_S = 900.0
#: How long a guest may take to become idle before its state is saved.
_REST_S = 120.0

#: Reads the programs that tests run most, and what a person's shell reads; missing ones are ignored.
_WARM_UP = (
    "for tool in true false sh cat ls env sleep test grep uname date lspci systemctl journalctl; do "
    'cat "$(command -v "$tool")" >/dev/null 2>&1; done; '
    "echo exit | TERM=xterm-256color HISTFILE= script -qec bash /dev/null >/dev/null 2>&1; true"
)
_SEED_LABEL = f"/dev/disk/by-label/{SEED_LABEL}"
#: The network's socket has already started it, but it must start again with what cloud-init writes;
#: only the start of `network-pre.target` waits for that.
_WITHDRAW_NETWORK = "systemctl stop systemd-networkd.socket systemd-networkd.service network.target network-pre.target"
#: `ds-identify` stores its result in /run, and runs again with systemd's generators.
START_CLOUD_INIT = (
    f"{_WITHDRAW_NETWORK}; "
    "cd /run/cloud-init 2>/dev/null && rm -f .ds-identify.result cloud.cfg disabled enabled; "
    "systemctl daemon-reload && systemctl start --no-block default.target"
)


@dataclass(frozen=True, kw_only=True)
class MachineServices:
    """What all machines of a lab share.

    `driver` starts the VM. `identity` generates the SSH keys at its first call. `transport` raises
    RequirementError where QEMU can't take an emulated GPU. `patience` is the factor for waits on a
    guest, whose limits are for KVM on bare metal. `report` is called with the reason while a
    machine waits for capacity, or for GPUs of the host. `roster` lists the machines that run, for
    `harness ps`; `activities` says what they do.
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


def console_pattern(step: str | None) -> str:
    """Return the regular expression for what is waited for on a console while cloud-init runs.

    `step` is the pattern of a provisioner's steps. It is looked for in complete lines only, and
    only before the end of cloud-init, which it could consume otherwise.
    """
    if step is None:
        return f"{_END}|{_STAGE}"
    return rf"{_END}|{_STAGE}|(?={step})(?!(?s:.)*{_END})(?:{_without_names(step)})(?=[^\n]*\n)"


def _without_names(pattern: str) -> str:
    """Return a pattern with groups that have no names, since a name may be there only once."""
    return re.sub(r"\(\?P<\w+>", "(", pattern)


def ignore_progress(_line: str) -> None:
    """Ignore progress."""


def savable_machine(vm: Machine) -> SavableMachine:
    """Return the machine as one that can be saved; raises HarnessError where its driver can't."""
    if isinstance(vm, SavableMachine):
        return vm
    raise HarnessError(f"The VM driver of machine '{vm.spec.name}' can't save running machines.")


class LabMachine:
    """A running machine; ends with its `with` block.

    Where its description has no checkpoint it boots, with the GPUs in their slots from the start; with
    one it continues from there, and the GPUs are plugged as soon as it runs.
    """

    def __init__(
        self,
        description: MachineDescription,
        services: MachineServices,
    ) -> None:
        self.description = description
        self.spec = description.spec
        self.folder = description.folder
        self._services = services
        self._resources = contextlib.ExitStack()
        self._ssh: SshRunner | None = None
        self._is_agent_ready = False
        self._is_killed = False
        self._vm: Machine | None = None
        self._listing: Listing | None = None
        self._guest_clock: GuestClock | None = None
        self._activity = services.activities.of(self.folder.name)
        self.last_state: NodeState | None = None
        self.gpus = MachineGpus(
            self.spec,
            self.folder,
            transport=services.transport,
            sources=services.gpu_sources,
            scripts=description.gpu_scripts,
        )

    @stepped("Start machine '{0.name}'")
    def __enter__(self) -> Self:
        try:
            self._enter()
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._resources.close()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint from which the machine continues; None where it boots."""
        return self.description.checkpoint

    @property
    def has_vm(self) -> bool:
        """Return whether the VM was started; it may have ended since."""
        return self._vm is not None

    @property
    def vm(self) -> Machine:
        """Return the VM itself; raises HarnessError before it has been started."""
        if self._vm is None:
            raise HarnessError(f"Machine '{self.name}' has not been started.")
        return self._vm

    def _enter(self) -> None:
        """Start, and say what the machine does from then on."""
        self._resources.enter_context(watched(self._activity))
        words = f"runs for {purpose_of_process(sys.argv)}"
        self._resources.enter_context(self._activity.during(words, stage=Stage.RUNS))
        with self._activity.during(self._start_words):
            self._start()

    @property
    def _start_words(self) -> str:
        size = f"with {self.spec.memory_mib} MiB"
        image = self.description.source.name
        if self.checkpoint is not None:
            return f"continues from a checkpoint of '{image}' {size}"
        return f"{'boots' if self.description.bundle is None else 'resumes'} '{image}' {size}"

    def _start(self) -> None:
        services = self._services
        # Closed after the VM, whose guest would otherwise see its GPUs vanish.
        self._resources.callback(self.gpus.close)
        # Before capacity, which a machine must not hold while it waits for GPUs of the host.
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

    @property
    def agent_program(self) -> bytes:
        """Return the agent, which in a resumed guest is that of the harness that saved it."""
        bundle = self.description.bundle
        return self._services.agent_program if bundle is None else bundle.agent_program

    @stepped("Resume the saved machine")
    def _resume(self, bundle: MachineBundle) -> None:
        """Continue a saved machine, with the host's time; its guest may have been hanging then."""
        savable_machine(self.vm).restore_whole(bundle.memory)
        with contextlib.suppress(HarnessError):
            self.vm.agent.settle(self.deadline(_ANSWER_KVM_S))
            self._is_agent_ready = True

    def save_bundle(self, folder: Path, *, purpose: str) -> MachineBundle:
        """Save the machine as it is now into the new `folder`, and let its guest go on.

        Its GPUs are unplugged before, and stay so. Raises HarnessError where it can't be saved: where
        its guest does not answer and so can't release a GPU, or its driver can't save machines.
        """
        with self._activity.during("is saved into the evidence"):
            return self._save_bundle(folder, purpose=purpose)

    def _save_bundle(self, folder: Path, *, purpose: str) -> MachineBundle:
        from harness.lab.machine_bundle import save_machine  # noqa: PLC0415 - few are

        savable = savable_machine(self.vm)
        if not self.vm.is_running:
            raise HarnessError(f"Machine '{self.name}' has ended, and its memory is gone.")
        models = [gpu.title for gpu in self.gpus.provided if gpu.device_id in self.gpus.emulated]
        seed = self._release_devices()
        source = self.description.source
        return save_machine(
            self.vm,
            savable,
            folder,
            base=source.disk,
            base_image=describe_base(source.name, source.disk_sha256(), source.disk),
            gpus=models,
            seed=seed,
            agent_program=self.agent_program,
            driver=self._services.driver.name,
            purpose=purpose,
        )

    def _release_devices(self) -> Path | None:
        """Unplug the GPUs, which can't be saved, and the seed; return the seed where it stays.

        Raises HarnessError where a guest with GPUs does not answer.
        """
        try:
            # A guest that hangs would take the whole limit of an unplug.
            self.vm.agent.ping(self.deadline(_ANSWER_KVM_S))
        except HarnessError as error:
            if self.gpus.plugged:
                raise HarnessError(
                    f"Machine '{self.name}' has {listed(self.gpus.plugged)}, which can't be saved, and a "
                    f"guest that does not answer can't release it: {error}"
                ) from error
            seed = self.folder / SEED
            return seed if seed.exists() else None
        for device_id in self.gpus.plugged:
            self.hot_unplug(device_id, in_use=True)
        self.vm.unplug_seed(self.deadline(_HOT_PLUG_KVM_S))
        return None

    def _stop_reason(self) -> str | None:
        return (
            f"Machine '{self.name}' was killed by the end of the run." if self._is_killed else None
        )

    @stepped("Restore the checkpoint '{1.folder.name}'")
    def _restore(self, checkpoint: Checkpoint) -> None:
        """Continue from the checkpoint, with the host's time and new random numbers."""
        self.vm.restore(checkpoint.state)
        result = self.vm.agent.settle(
            self.deadline(_READY_KVM_S), hostname=self.description.hostname
        )
        digest = hashlib.sha256((result.nonce or "").encode()).hexdigest()
        if digest != checkpoint.facts[NONCE_FACT]:
            raise HarnessError(
                f"Machine '{self.name}' was expected to continue from '{checkpoint.folder}', but "
                "its memory does not have that checkpoint's nonce. Remove the "
                "checkpoint (`harness checkpoints gc --all`), and run again."
            )
        self._is_agent_ready = True

    def plug_seed(self, seed: Path) -> None:
        """Plug a seed volume into the running machine, and wait until the guest sees its label."""
        self.vm.plug_seed(seed)
        self.agent.wait_for_file(_SEED_LABEL, self.deadline(_HOT_PLUG_KVM_S))

    def start_cloud_init(self) -> None:
        """Continue the boot of a machine that stopped before cloud-init; returns at once.

        All stages of cloud-init then run, including its search for a data source (in systemd's
        generator): the result of the search without a seed is discarded.
        """
        self.guest.output_of("sh", "-c", START_CLOUD_INIT)

    @stepped("Wait for cloud-init of machine '{0.name}'")
    def wait_until_cloud_init_finished(
        self,
        deadline: Deadline,
        progress: Callable[[str], None] = ignore_progress,
        *,
        step: str | None = None,
    ) -> CloudInitResult:
        """Wait until cloud-init has finished, with or without errors, and return its result.

        `progress` is called with boot stages as the console shows them, and with what matches the
        regular expression `step`.
        Raises HarnessError at the deadline, or at once when the guest can't finish any more.
        """
        with self._activity.during("waits for cloud-init", deadline):
            return self._wait_for_cloud_init(deadline, progress, step)

    def _wait_for_cloud_init(
        self, deadline: Deadline, progress: Callable[[str], None], step: str | None
    ) -> CloudInitResult:
        if not self._is_built:
            # Its console may show anything, so the agent waits, until the deadline.
            return self.guest.wait_for_cloud_init_result(deadline)
        expected = console_pattern(step)
        seen = ""
        with consecutive() as begin_step:
            while re.fullmatch(_END, seen) is None:
                seen = self.vm.console.wait_for(
                    expected,
                    deadline,
                    what="that cloud-init has finished",
                    failure=self.failure,
                )
                if not seen:
                    raise HarnessError(
                        f"The pattern {step!r} of the provisioner's steps matches an empty text, and "
                        "would forever; let it match the name of a step."
                    )
                self.mark(seen)
                self._activity.note(f"waits for cloud-init, which printed: {seen.strip()}")
                progress(seen)
                if stage := _STAGE_NAME.fullmatch(seen):
                    begin_step(f"cloud-init: {stage[1]}")
        return self.guest.wait_for_cloud_init_result(deadline)

    def run_cloud_init(self, seed: SeedFiles) -> CloudInitResult:
        """Run all stages of cloud-init with `seed`, in a machine that stopped before them."""
        self.plug_seed(write_seed(seed, self.folder / SEED))
        self.start_cloud_init()
        kvm_s = _CLOUD_INIT_KVM_S if self._is_built else _CLOUD_INIT_OF_CLOUD_IMAGE_KVM_S
        return self.wait_until_cloud_init_finished(self.deadline(kvm_s, follows_progress=True))

    @stepped("Save the state of machine '{0.name}'")
    def save(self, state: Path, nonce: str) -> None:
        """Wait until the guest is idle, save its state, and end it; its `spec` names memory and disk.

        Raises HarnessError while a GPU is plugged in: an emulated GPU's state can't be saved.
        """
        if self.gpus.plugged:
            raise HarnessError(
                f"Machine '{self.name}' can't become a checkpoint while it has the GPU "
                f"'{self.gpus.plugged[0]}'; unplug it first, and plug one into each clone."
            )
        with self._activity.during("is saved"):
            self._save(state, nonce)

    def _save(self, state: Path, nonce: str) -> None:
        self.vm.unplug_seed(self.deadline(_HOT_PLUG_KVM_S))
        # Each clone would continue whatever the guest is still doing.
        self.guest.run("systemctl", "is-system-running", "--wait", timeout_s=_REST_S)
        self.guest.output_of("udevadm", "settle")
        # So the template reads them from the disk into its page cache once, and not each clone.
        self.guest.output_of("sh", "-c", _WARM_UP)
        self.guest.output_of("true")
        self.guest.output_of("sync")
        self.vm.wait_until_idle(self._after(_REST_S))
        self.agent.remember(nonce, self.deadline(_CONNECT_KVM_S))
        self.vm.save(state)

    @stepped("Plug a GPU into machine '{0.name}'")
    def hot_plug(self, gpu: RequestedGpu) -> str:
        """Plug a GPU into the running machine, and return its device id."""
        (provided,) = self.gpus.provide(
            [gpu], report=self._services.report, cancelled=self._stop_reason
        )
        self.vm.plug(provided.attachment)
        self._show_gpus()
        return provided.device_id

    def _show_gpus(self) -> None:
        """Show in `harness ps` which GPUs the machine has now."""
        if self._listing is not None:
            self._listing.show_gpus([gpu.title for gpu in self.gpus.provided])

    def wait_for_gpus(self) -> None:
        """Wait until the guest lists every plugged GPU on its bus.

        Raises HarnessError with the functions that it lists instead.
        """
        self._wait_for_functions(Counter(gpu.pci for gpu in self.gpus.provided))

    def wait_for_gpu(self, model: GpuModel, *, count: int = 1) -> None:
        """Wait until the guest lists `count` GPUs of this model on its bus.

        Raises HarnessError with the functions that it lists instead.
        """
        self._wait_for_functions(Counter({str(model.pci): count}))

    def _wait_for_functions(self, wanted: Counter[str]) -> None:
        if not wanted:
            return
        # What the guest does to an emulated GPU shows on this side. A loop in the guest would take
        # the processor time that an emulated processor needs to find the GPU.
        self.gpus.wait_until_placed(self.deadline(_PLACED_KVM_S))
        if wanted <= self._listed_functions():
            return
        for pci, count in wanted.items():
            self.guest.wait_for_pci(pci, count=count)

    def _listed_functions(self) -> Counter[str]:
        """Count the PCI functions of the guest by vendor and device id; no process starts there."""
        listed = self.agent.read_bytes(_PCI_FUNCTIONS, self.deadline(_ANSWER_KVM_S)) or b""
        return Counter(
            f"{ids[:4]}:{ids[4:]}"
            for line in listed.decode(errors="replace").splitlines()
            for ids in line.split()[1:2]
        )

    @stepped("Unplug a GPU of machine '{0.name}'")
    def hot_unplug(self, device_id: str, *, in_use: bool = False) -> None:
        """Ask the guest to release a GPU, and wait until it is removed; its trace is kept.

        Raises HarnessError where a process of the guest has a GPU open, unless it may be removed while
        it is `in_use`: NVIDIA's driver waits for that process, and does not answer before it ends.
        """
        users = [] if in_use else self.guest.users_of(GPU_DEVICE_FILES)
        if users:
            raise HarnessError(
                f"GPU '{device_id}' of machine '{self.name}' is not unplugged, since a GPU is in use in "
                f"the guest: {'; '.join(users)}. End that first, or pass `in_use=True`."
            )
        self.vm.unplug(device_id, self.deadline(_HOT_PLUG_KVM_S))
        self.gpus.withdraw(device_id)
        self._show_gpus()

    def gpu(self, device_id: str = "gpu0") -> EmulatedGpu:
        """Return the device model behind a GPU, plugged or one of the last to be unplugged.

        Raises HarnessError where there is none.
        """
        return self.gpus.gpu(device_id)

    def gpu_traces(self) -> Mapping[str, AccessTrace]:
        """Return the trace of the guest's accesses to each GPU, by device id."""
        return self.gpus.traces()

    def doing(self, what: str, deadline: Deadline) -> contextlib.AbstractContextManager[None]:
        """Say in this context that the machine does `what`, until `deadline` at most."""
        return self._activity.during(what, deadline)

    def mark(self, words: str) -> None:
        """Write a line into the trace of every GPU; boot stages and steps do so too."""
        self.gpus.mark(words)

    @property
    def agent(self) -> Agent:
        """Return the guest's agent; the first use in a booted machine waits until it is ready."""
        if not self._is_agent_ready:
            patience_s = _READY_KVM_S if self._is_built else _READY_BY_FIRMWARE_KVM_S
            deadline = self.deadline(patience_s)
            with (
                take_step(f"Wait for the agent of machine '{self.name}'"),
                self._activity.during("waits for the guest agent", deadline),
            ):
                self.vm.agent.wait_until_ready(deadline)
            self._is_agent_ready = True
        return self.vm.agent

    def require_answer(self) -> None:
        """Raise HarnessError where the guest does not answer within seconds, since it hangs or is still booting."""
        self.vm.agent.ping(self.deadline(_BUSY_ANSWER_KVM_S))

    @property
    def _is_built(self) -> bool:
        """Return whether the image is one of ours, with the agent in it and a console on serial."""
        kernel = self.spec.kernel
        return isinstance(kernel, DirectKernel) and not kernel.is_verbatim

    @property
    def guest(self) -> Guest:
        """Return operations in the guest."""
        return Guest(self.name, self.agent)

    @stepped("Take the state of machine '{0.name}'")
    def state(self) -> NodeState:
        """Return the state of the whole guest, which should be at rest, for `expect.unchanged`.

        Parts that can't be read are `unknown` in it. Raises HarnessError where the guest does not
        answer.
        """
        from harness.evidence.state_capture import take_state  # noqa: PLC0415 - few tests do

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
        connection; it ends with the machine.
        """
        if self._ssh is None:
            runner = SshRunner(
                name=self.name,
                port=self.vm.ssh_port(),
                identity=self._services.identity(),
                folder=self.folder,
            )
            self._resources.callback(runner.close)
            runner.connect(self.deadline(_CONNECT_KVM_S))
            self._ssh = runner
        return self._ssh

    @stepped("Reboot machine '{0.name}'")
    def reboot(self, deadline: Deadline) -> None:
        """Reboot the guest within its machine, and wait until its agent answers again.

        One that boots by firmware can, and a node whose request says that it `may_reboot`: others end
        when their guest reboots. Raises HarnessError when the guest is not back in time.
        """
        if not self.spec.may_reboot:
            raise HarnessError(
                f"Machine '{self.name}' boots a kernel that QEMU loads, and ends when its guest "
                "reboots; boot it by firmware, or request the node with 'may_reboot'."
            )
        before = self.guest.output_of("cat", _BOOT_ID)
        # The guest may go down before the answer arrives.
        with contextlib.suppress(HarnessError):
            self.guest.run("systemctl", "--no-block", "reboot")

        def poll() -> Observation[str]:
            if reason := self.failure():
                raise HarnessError(f"Machine '{self.name}' did not come back: {reason}")
            if not self.vm.is_running:
                raise HarnessError(f"Machine '{self.name}' did not come back: it has ended.")
            try:
                now = self.guest.output_of(
                    "cat", _BOOT_ID, timeout_s=max(1.0, deadline.remaining_s())
                )
            except HarnessError as error:
                return Observation(None, str(error))
            return Observation(None if now == before else now, "it is still going down")

        try:
            with self._activity.during("waits for its guest to come back", deadline):
                wait_for(f"machine '{self.name}' to come back", poll, deadline, interval_s=0.5)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} Its serial console ends with:\n{self.vm.console.tail()}"
            ) from error

    def failure(self) -> str | None:
        """Return why this machine can't continue, or None."""
        return self.gpus.stall_report(_STALL_S) or self.vm.failure()

    def kill(self) -> None:
        """End the machine at once, from any thread; a thread that waits for it gets an error."""
        self._is_killed = True
        if self._vm is not None:
            self._vm.kill()

    def deadline(self, kvm_s: float, *, follows_progress: bool = False) -> Deadline:
        """Return a deadline of `kvm_s` seconds, multiplied by the patience of the run.

        Time in which the host keeps the machine waiting does not count. A deadline that
        `follows_progress` is put off while the guest prints lines.
        """
        return self._after(kvm_s * self._services.patience, follows_progress=follows_progress)

    def _after(self, seconds: float, *, follows_progress: bool = False) -> Deadline:
        if self._guest_clock is None:
            return Deadline.after(seconds)
        return GuestDeadline.of(self._guest_clock, seconds, follows_progress=follows_progress)
