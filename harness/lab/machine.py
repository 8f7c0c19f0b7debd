"""A machine of a lab: a VM with its emulated GPUs, its guest's agent, and the way it began."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from harness.cloudinit import FINISHED, SEED_LABEL, write_seed
from harness.errors import HarnessError
from harness.lab.gpus import MachineGpus
from harness.machine.broker import Demand
from harness.machine.guest import Guest
from harness.machine.spec import DirectKernel, Firmware, MemoryFile
from harness.machine.ssh import SshRunner
from harness.provisioning.wait import (
    Deadline,
    Observation,
    WaitTimeoutError,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from harness.cloudinit import CloudInitResult, SeedFiles
    from harness.gpu import GpuModel
    from harness.gpu.emulated import EmulatedGpu
    from harness.gpu.script import GpuScript
    from harness.gpu.trace import AccessTrace
    from harness.gpu.transport import Transport
    from harness.machine import Machine, VmDriver
    from harness.machine.agent import Agent
    from harness.machine.broker import Broker
    from harness.machine.checkpoint import Checkpoint
    from harness.machine.spec import MachineSpec
    from harness.machine.ssh import SshIdentity

#: What a checkpoint's facts say of its nonce, which lies in the guest's memory alone.
NONCE_FACT = "nonce_sha256"

_BOOT_ID = "/proc/sys/kernel/random/boot_id"

#: Seconds that KVM is given; TCG gets them times its patience.
_CONNECT_KVM_S = 10.0
_READY_KVM_S = 30.0
#: With a boot loader's wait, and an agent that comes when cloud-init has the network.
_READY_BY_FIRMWARE_KVM_S = 90.0
_HOT_PLUG_KVM_S = 10.0
_CLOUD_INIT_KVM_S = 30.0
#: What the console shows on the way: cloud-init's stages, and provisioning's steps as they end.
_MILESTONE = r"running '[a-z:-]+'|step [a-z-]+ (?:done|failed) after [0-9.]+ s"
#: The seed volume's name in a machine's folder.
SEED = "seed.iso"
#: Seconds after which a guest blocked on its GPU is called stuck.
_STALL_S = 60.0
#: Seconds after which a guest's delay is put down to its GPU.
_NOTICED_S = 1.0
#: What QEMU takes beside the guest's memory.
_QEMU_MIB = 128
_ROOM_S = 900.0
#: How long a guest may take to come to rest before its state is saved.
_REST_S = 120.0

#: Reads what tests run most; a guest that lacks some of it is none the worse.
_WARM_UP = (
    "for tool in true false sh cat ls env sleep test grep uname date lspci systemctl journalctl; do "
    'cat "$(command -v "$tool")" >/dev/null 2>&1; done; true'
)
_NO_SCRIPTS: Mapping[str, GpuScript] = MappingProxyType({})
_SEED_LABEL = f"/dev/disk/by-label/{SEED_LABEL}"
#: The network, which its socket has started before its time, has to find what cloud-init writes for it;
#: and only the start of `network-pre.target` is what waits for that.
_WITHDRAW_NETWORK = "systemctl stop systemd-networkd.socket systemd-networkd.service network.target network-pre.target"
#: `ds-identify` keeps its answer in /run, and is asked again when systemd's generators run.
LET_GO = (
    f"{_WITHDRAW_NETWORK}; "
    "cd /run/cloud-init 2>/dev/null && rm -f .ds-identify.result cloud.cfg disabled enabled; "
    "systemctl daemon-reload && systemctl start --no-block default.target"
)


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """What a lab lends to each of its machines.

    `driver` makes the VM itself. `transport` raises RequirementError where QEMU takes no emulated
    GPU; `tell` hears why a machine has to wait for room.
    """

    driver: VmDriver
    agent_program: bytes = field(repr=False)
    identity: SshIdentity
    broker: Broker
    transport: Callable[[], Transport]
    tell: Callable[[str], None]


def say_nothing(_line: str) -> None:
    """Listen to no progress."""


class LabMachine:
    """A running machine; ends with its `with` block.

    Without a checkpoint it boots, with the GPUs in their slots from the start; with one it goes
    on from there, and the GPUs are plugged into it as soon as it runs. `gpu_scripts` say by device
    id what is wrong with a GPU from the moment it is plugged.
    """

    def __init__(
        self,
        spec: MachineSpec,
        folder: Path,
        equipment: Equipment,
        *,
        gpus: Sequence[GpuModel] = (),
        gpu_scripts: Mapping[str, GpuScript] = _NO_SCRIPTS,
        checkpoint: Checkpoint | None = None,
        hostname: str | None = None,
    ) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self._equipment = equipment
        self._wanted_gpus = gpus
        self._hostname = hostname
        self._resources = contextlib.ExitStack()
        self._ssh: SshRunner | None = None
        self._is_agent_ready = False
        self._is_killed = False
        self._vm: Machine | None = None
        if checkpoint is not None:
            memory = spec.memory_file or MemoryFile(path=checkpoint.ram, is_private=True)
            spec = replace(spec, is_restored=True, seed=None, memory_file=memory)
        self.spec = spec
        self.gpus = MachineGpus(
            spec,
            folder,
            driver=equipment.driver,
            transport=equipment.transport,
            scripts=gpu_scripts,
        )

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._resources.close()

    @property
    def name(self) -> str:
        return self.spec.name

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

    def _start(self) -> None:
        equipment = self._equipment
        room = self._resources.enter_context(
            equipment.broker.claim(
                self.name,
                Demand(memory_mib=self.spec.memory_mib + _QEMU_MIB, cpus=self.spec.cpus),
                deadline=Deadline.after(_ROOM_S),
                tell=equipment.tell,
                trouble=self._unwanted,
            )
        )
        # After the VM, whose guest would else see its GPUs vanish.
        self._resources.callback(self.gpus.close)
        at_start = () if self.checkpoint is not None else self._wanted_gpus
        attachments = [self.gpus.serve(model).attachment() for model in at_start]
        self._vm = self._resources.enter_context(
            equipment.driver.machine(
                self.spec, self.folder, attachments, agent_program=equipment.agent_program
            )
        )
        if self._vm.pid is not None:
            room.used_by(self._vm.pid)
        self._vm.agent.link.explain_delay = lambda: self.gpus.stuck(_NOTICED_S)
        if why := self._unwanted():
            raise HarnessError(why)
        if self.checkpoint is not None:
            self._restore(self.checkpoint)
            for model in self._wanted_gpus:
                self.hot_plug(model)

    def _unwanted(self) -> str | None:
        return f"Machine '{self.name}' is not wanted any more." if self._is_killed else None

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on from the checkpoint, with the host's time and random numbers of its own."""
        self.vm.restore(checkpoint.state)
        settled = self.vm.agent.settle(self.deadline(_READY_KVM_S), hostname=self._hostname)
        told = hashlib.sha256((settled.nonce or "").encode()).hexdigest()
        if told != checkpoint.facts[NONCE_FACT]:
            raise HarnessError(
                f"Machine '{self.name}' was expected to go on from '{checkpoint.folder}', but "
                "what it remembers is not what was told to that checkpoint's machine. Remove the "
                "checkpoint (`harness checkpoints gc --all`), and run again."
            )
        self._is_agent_ready = True

    def plug_seed(self, seed: Path) -> None:
        """Plug a seed volume into the running machine, and wait until the guest sees its label."""
        self.vm.plug_seed(seed)
        self.agent.wait_for_file(_SEED_LABEL, self.deadline(_HOT_PLUG_KVM_S))

    def let_cloud_init_run(self) -> None:
        """Let a machine that was held before cloud-init boot on; returns at once.

        All stages of cloud-init then run, its search for a data source (in systemd's generator)
        among them: what that found without a seed is forgotten.
        """
        self.guest.output_of("sh", "-c", LET_GO)

    def wait_until_cloud_init_finished(
        self, deadline: Deadline, progress: Callable[[str], None] = say_nothing
    ) -> CloudInitResult:
        """Wait until cloud-init has finished, well or badly, and return its own result.

        `progress` hears of boot stages and of provisioning's steps as the console shows them.
        Raises HarnessError when it has not in time, or at once when the guest can't any more.
        """
        if not self._is_built:
            # Its console may be any; the agent tells, and its limit is the deadline's.
            return self.guest.wait_for_cloud_init_result(deadline)
        seen = ""
        while seen != FINISHED:
            seen = self.vm.console.wait_for(
                f"{FINISHED}|{_MILESTONE}",
                deadline,
                what="that cloud-init has finished",
                trouble=self.trouble,
            )
            self.mark(seen)
            progress(seen)
        return self.guest.wait_for_cloud_init_result(deadline)

    def run_cloud_init(self, seed: SeedFiles) -> CloudInitResult:
        """Run all stages of cloud-init with `seed`, in a machine that was held before them."""
        self.plug_seed(write_seed(seed, self.folder / SEED))
        self.let_cloud_init_run()
        return self.wait_until_cloud_init_finished(self.deadline(_CLOUD_INIT_KVM_S))

    def save(self, state: Path, nonce: str) -> None:
        """Bring the guest to rest, save its state, and end it; its `spec` names memory and disk.

        Raises HarnessError while a GPU is plugged in: an emulated GPU's state can't be saved.
        """
        if self.gpus.plugged:
            raise HarnessError(
                f"Machine '{self.name}' can't become a checkpoint while it has the GPU "
                f"'{self.gpus.plugged[0]}'; unplug it before, and plug one into each clone."
            )
        self.vm.unplug_seed(self.deadline(_HOT_PLUG_KVM_S))
        # Whatever the guest is still at, each of its clones would go on with.
        self.guest.run("systemctl", "is-system-running", "--wait", timeout_s=_REST_S)
        self.guest.output_of("udevadm", "settle")
        # In the page cache of the template they are read from the disk once, and not by each clone.
        self.guest.output_of("sh", "-c", _WARM_UP)
        self.guest.output_of("true")
        self.guest.output_of("sync")
        self.vm.wait_until_idle(Deadline.after(_REST_S))
        self.agent.remember(nonce, self.deadline(_CONNECT_KVM_S))
        self.vm.save(state)

    def hot_plug(self, model: GpuModel) -> str:
        """Plug a GPU into the running machine, and return its device id."""
        server = self.gpus.serve(model)
        self.vm.plug(server.attachment())
        return server.device_id

    def wait_for_gpu(self, model: GpuModel, *, count: int = 1) -> None:
        """Wait until the guest lists so many GPUs of this model on its bus.

        Raises HarnessError with what it lists instead.
        """
        self.guest.wait_for_pci(str(model.pci), count=count)

    def hot_unplug(self, device_id: str) -> None:
        """Ask the guest to let go of a GPU, and wait until it has; its trace is kept."""
        self.vm.unplug(device_id, self.deadline(_HOT_PLUG_KVM_S))
        self.gpus.withdraw(device_id)

    def gpu(self, device_id: str = "gpu0") -> EmulatedGpu:
        """Return the device model behind a GPU, plugged or one of the last to be unplugged.

        Raises HarnessError where there is none.
        """
        return self.gpus.gpu(device_id)

    def gpu_traces(self) -> Mapping[str, AccessTrace]:
        """Return what the guest did to each GPU, by device id."""
        return self.gpus.traces()

    def mark(self, words: str) -> None:
        """Write a line into the trace of every GPU; boot stages and steps write theirs."""
        self.gpus.mark(words)

    @property
    def agent(self) -> Agent:
        """Return the guest's agent; the first use in a booted machine waits until it is up."""
        if not self._is_agent_ready:
            patience_s = _READY_KVM_S if self._is_built else _READY_BY_FIRMWARE_KVM_S
            self.vm.agent.wait_until_ready(self.deadline(patience_s))
            self._is_agent_ready = True
        return self.vm.agent

    @property
    def _is_built(self) -> bool:
        """Return whether the image is one of ours, with the agent in it and a console on serial."""
        kernel = self.spec.kernel
        return isinstance(kernel, DirectKernel) and not kernel.is_verbatim

    @property
    def guest(self) -> Guest:
        """Return the guest's verbs."""
        return Guest(self.name, self.agent)

    def ssh(self) -> SshRunner:
        """Return a way in by SSH, for people and for machines without an agent.

        The guest must have been provisioned with the lab's keys. The first use opens the
        connection; it ends with the machine.
        """
        if self._ssh is None:
            runner = SshRunner(
                name=self.name,
                port=self.vm.ssh_port(),
                identity=self._equipment.identity,
                folder=self.folder,
            )
            self._resources.callback(runner.close)
            runner.connect(self.deadline(_CONNECT_KVM_S))
            self._ssh = runner
        return self._ssh

    def reboot(self, deadline: Deadline) -> None:
        """Reboot the guest within its machine, and wait until its agent answers again.

        Only a machine that boots by firmware can: others end with their guest. Raises HarnessError
        when the guest is not back in time.
        """
        if not isinstance(self.spec.kernel, Firmware):
            raise HarnessError(
                f"Machine '{self.name}' boots a kernel that QEMU loads, and ends when its guest "
                "reboots; boot it by firmware."
            )
        before = self.guest.output_of("cat", _BOOT_ID)
        # The guest may go so fast that it takes the answer with it.
        with contextlib.suppress(HarnessError):
            self.guest.run("systemctl", "--no-block", "reboot")

        def look() -> Observation[str]:
            if trouble := self.trouble():
                raise HarnessError(f"Machine '{self.name}' did not come back: {trouble}")
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
            wait_for(f"machine '{self.name}' to come back", look, deadline, interval_s=0.5)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} Its serial console ends with:\n{self.vm.console.tail()}"
            ) from error

    def trouble(self) -> str | None:
        """Say why nothing good can come of this machine any more, or None."""
        return self.gpus.stuck(_STALL_S) or self.vm.trouble()

    def kill(self) -> None:
        """End the machine at once, from any thread; who waits for it learns of that."""
        self._is_killed = True
        if self._vm is not None:
            self._vm.kill()

    def deadline(self, kvm_s: float) -> Deadline:
        """Return a deadline of `kvm_s` seconds under KVM, and of what TCG needs for the same."""
        return Deadline.after(kvm_s * self.spec.accelerator.patience)
