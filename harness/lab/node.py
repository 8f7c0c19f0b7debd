"""One node: a machine that provisions itself by cloud-init, and its evidence.

The module is long because a node's boot, its runs and its evidence share the state of one machine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.argv import check_commands
from harness.cloudinit import (
    GuestFile,
    UserData,
    cloud_config,
    render_cloud_config,
    render_seed,
)
from harness.errors import BadInputError, HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.evidence.request import NOTHING_MORE, AdditionalEvidence
from harness.image import CloudImage, CloudImageKernel
from harness.image.own_kernel import KernelFiles, KernelPackages
from harness.lab import evidence_collection
from harness.lab.cloud_images import CloudImageBoot, CloudImageSource, agent_commands
from harness.lab.description import SEED, describe
from harness.lab.machine_cloud_init import ignore_progress
from harness.lab.provisioning_steps import ProvisioningSteps
from harness.lab.saved_states import (
    BuiltImageSource,
    booted,
    cloud_init_done,
    naming_seed,
)
from harness.lab.stand_ins import check_stand_ins, stand_in_files
from harness.machine.description.spec import DEFAULT_CPUS, DEFAULT_MEMORY_MIB, DEFAULT_SLOTS
from harness.machine.guest_time import GUEST_LIMIT_TIMES
from harness.provisioner import BOOT, NodeFact, Provisioner, runner_file
from harness.provisioner.user_data import merge_user_data
from harness.steps import stepped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from harness.cloudinit import SeedFiles, SshAccess
    from harness.evidence import Evidence
    from harness.evidence.state import NodeState
    from harness.gpu.emulated import EmulatedGpu
    from harness.gpu.script import GpuScript
    from harness.image import Image, Kernel
    from harness.image.own_kernel import OwnKernel
    from harness.lab.description import BootSource, MachineDescription, Platform
    from harness.lab.gpu_sources import RequestedGpu
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState
    from harness.machine.channels.guest import Guest
    from harness.machine.checkpoint.store import Checkpoint
    from harness.machine.description.spec import HostPort
    from harness.provisioning.command import Argv, CommandResult
    from harness.provisioning.wait import Deadline

#: Seconds for the boot loader's delay and everything that a distribution does at its first boot.
#: The times apply under KVM; under TCG, the times are multiplied by the patience of the run.
_CLOUD_IMAGE_KVM_S = 90.0
_POWER_OFF_KVM_S = 15.0
#: `harness.provisioning` refuses a larger factor.
MAX_TIME_LIMIT_MULTIPLIER = 1000.0
#: Seconds under KVM to write a node's files and run its commands; some compile kernel modules.
_PREPARE_KVM_S = 60.0


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """A request for a node.

    A cloud image boots as `cloud_image_boot` says, and never starts as a clone; `kernel` is for
    built images.
    """

    name: str
    """The name of the machine, of its folder and of its evidence."""
    image: Image | CloudImage
    """A built image, with or without the driver baked in, or a cloud image."""
    kernel: Kernel | OwnKernel | None = None
    """The kernel to boot: your own kernel, or a kernel of the image (by default the newest)."""
    provisioner: Provisioner | None = None
    """The provisioner to use; by default the run's provisioner, from `--provisioner`."""
    command: str | None = BOOT
    """The provisioner's command that cloud-init runs; None runs no command."""
    config: Mapping[str, object] = field(default_factory=dict)
    """Keys of the provisioner's configuration, in addition to the keys in its declaration."""
    gpus: Sequence[RequestedGpu] = ()
    """The GPUs that are plugged in at the start: models, or `GpuChoice` for GPUs of the host."""
    gpu_scripts: Mapping[str, GpuScript] = field(default_factory=dict)
    """The faults that a GPU has as soon as it is plugged in, by device id (`gpu0`)."""
    spare_slots: int = 1
    """The number of empty slots for GPUs that are plugged in later."""
    stand_ins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables of stand-ins, by the stand-in's name: `{"nvidia-dcgm": {"START_DELAY_S": "30"}}`.
    An unknown name or variable raises BadInputError."""
    files: Sequence[GuestFile] = ()
    """Files that cloud-init writes into the guest."""
    before: Sequence[Argv] = ()
    """Commands that cloud-init runs before provisioning, each a list of words."""
    early: Sequence[Argv] = ()
    """Commands that cloud-init runs before everything else, in its `bootcmd`."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the virtual machine in the cached instance metadata."""
    vm_size: str = "Standard_ND96isr_H100_v5"
    """The VM size in the cached instance metadata."""
    memory_mib: int = DEFAULT_MEMORY_MIB
    """The guest's memory in MiB."""
    cpus: int = DEFAULT_CPUS
    """The guest's vCPUs. An emulated GPU with more than one vCPU needs QEMU 10.1.1 or newer."""
    host_ports: Sequence[HostPort] = ()
    """Ports of the host's loopback that the guest reaches; the fixture `registry` adds its port."""
    cloud_image_boot: CloudImageBoot | None = None
    """How a cloud image boots: its firmware, or one kernel without a boot loader."""
    skip_cloud_init: bool = False
    """Continue from a state after cloud-init: the guest agent writes the files and runs the commands.
    This saves many seconds in tests that are not about the boot."""
    derive: Callable[[SavedState], SavedState] | None = None
    """Derives a saved state from the state after cloud-init, for example by installing programs;
    the node continues from the derived state. Only for a node that skips cloud-init."""
    time_limit_multiplier: float | None = None
    """The factor for the provisioner's own time limits, for provisioners that declare a key for it.
    The default is `--timeout-multiplier`; on a busy host, this default is multiplied by the number
    of tasks per processor."""
    may_reboot: bool = False
    """Keep the machine running when its guest reboots; the node then does not start as a clone."""

    def __post_init__(self) -> None:
        multiplier = self.time_limit_multiplier
        if multiplier is not None and not 1 <= multiplier <= MAX_TIME_LIMIT_MULTIPLIER:
            raise BadInputError(
                f"The factor must be a number from 1 to {MAX_TIME_LIMIT_MULTIPLIER:g}, not {multiplier}.",
                source="NodeRequest",
                key="time_limit_multiplier",
            )
        if self.skip_cloud_init and isinstance(self.image, CloudImage):
            raise BadInputError(
                f"The cloud image '{self.image.name}' is provisioned at its first boot, by cloud-init; "
                "use its node image, or leave 'skip_cloud_init' out.",
                source="NodeRequest",
                key="skip_cloud_init",
            )
        if self.derive is not None and not self.skip_cloud_init:
            raise BadInputError(
                "'derive' changes the saved state after cloud-init; set 'skip_cloud_init' too, so that "
                "the node continues from this state.",
                source="NodeRequest",
                key="derive",
            )
        check_stand_ins(self.stand_ins, self.files)
        check_commands(self.before, source="NodeRequest", key="before")
        check_commands(self.early, source="NodeRequest", key="early")
        if self.kernel is not None and isinstance(self.image, CloudImage):
            raise BadInputError(
                f"The cloud image '{self.image.name}' boots the kernel that its boot loader chooses; "
                "use `boot_once`, or extract a kernel and name it in 'cloud_image_boot'.",
                source="NodeRequest",
                key="kernel",
            )

    @property
    def slots(self) -> int:
        """Return the number of GPUs that can be plugged into the node."""
        return len(self.gpus) + self.spare_slots

    @property
    def booted_kernel(self) -> Kernel:
        """Return the kernel that a built image boots. Raises HarnessError for a cloud image."""
        if isinstance(self.image, CloudImage):
            raise HarnessError(
                f"The boot loader of the cloud image '{self.image.name}' selects the kernel; "
                "read the kernel's version from the running machine."
            )
        if isinstance(self.kernel, (KernelPackages, KernelFiles)):
            raise HarnessError(
                "A kernel of your own is installed when the node boots; read the kernel from 'request' "
                "of the booted node."
            )
        return self.kernel or self.image.newest_kernel

    def metadata_cache(self, path: str) -> GuestFile:
        """Return the instance-metadata cache that AKS leaves on a node: the VM's tags and size."""
        tags = [{"name": name, "value": value} for name, value in self.tags.items()]
        document = {"compute": {"tagsList": tags, "vmSize": self.vm_size}}
        return GuestFile(path=path, content=json.dumps(document).encode())

    def provisioner_files(self, provisioner: Provisioner) -> tuple[GuestFile, ...]:
        """Return the files that a provisioner needs on this node.

        Raises BadInputError if the request needs something that the provisioner does not declare.
        """
        driver = self.image.driver
        facts = {
            NodeFact.HAS_GPUS: bool(self.gpus),
            NodeFact.GPU_COUNT: len(self.gpus),
            NodeFact.DRIVER_VERSION: None if driver is None else driver.version,
            NodeFact.DRIVER_SHA: None if driver is None else driver.sha,
            NodeFact.TIME_LIMIT_MULTIPLIER: self.time_limit_multiplier,
        }
        files = provisioner.guest_files(facts, self.config)
        if provisioner.metadata_path is not None:
            return (*files, self.metadata_cache(provisioner.metadata_path))
        if self.tags:
            raise BadInputError(
                f"Provisioner '{provisioner.name}' does not declare where it reads a virtual "
                "machine's tags, but a test sets tags; declare 'metadata', or leave 'tags' of "
                "the request empty.",
                source=provisioner.where,
                key="metadata",
            )
        return files


def all_files(request: NodeRequest, provisioner: Provisioner) -> tuple[GuestFile, ...]:
    """Return all files of a requested node: files of its provisioner, stand-ins and request."""
    return (
        runner_file(),
        *request.provisioner_files(provisioner),
        *stand_in_files(request.stand_ins),
        *request.files,
    )


def render_node_seed(
    request: NodeRequest,
    *,
    instance_id: str,
    provisioner: Provisioner,
    access: SshAccess | None,
    early: Sequence[Argv] = (),
) -> SeedFiles:
    """Render the seed with which cloud-init provisions a requested node.

    cloud-init runs the commands `early` first, in `bootcmd`. Raises BadInputError if the
    provisioner's user-data contradicts the user-data of the harness.
    """
    commands: list[Argv] = [list(argv) for argv in request.before]
    if request.command is not None:
        commands.append(list(provisioner.guest_command(request.command)))
    user_data = UserData(
        hostname=request.name,
        access=access,
        files=all_files(request, provisioner),
        commands=commands,
        early=early,
    )
    seed = render_seed(user_data, instance_id=instance_id)
    if not provisioner.user_data:
        return seed
    merged = merge_user_data(cloud_config(user_data), provisioner)
    return replace(seed, user_data=render_cloud_config(merged))


def require_applied_user_data(request: NodeRequest, provisioner: Provisioner) -> None:
    """Raise BadInputError if the node would lack files that cloud-init has to apply."""
    if request.skip_cloud_init and provisioner.user_data:
        raise BadInputError(
            f"Cloud-init applies the user-data of provisioner '{provisioner.name}', so a node "
            "that skips cloud-init would lack it; leave 'skip_cloud_init' out of the request.",
            source=provisioner.where,
            key="user_data",
        )


def state_of(request: NodeRequest) -> SavedState | None:
    """Return the state from which a clone of the node continues, or None if the node always boots."""
    if isinstance(request.image, CloudImage) or request.may_reboot:
        return None
    state = booted(
        request.image,
        request.booted_kernel,
        memory_mib=request.memory_mib,
        cpus=request.cpus,
        slots=request.slots,
    )
    if request.skip_cloud_init:
        state = cloud_init_done(state)
    return state if request.derive is None else request.derive(state)


def describe_node(
    request: NodeRequest,
    platform: Platform,
    folder: Path,
    *,
    provisioner: Provisioner,
    access: SshAccess | None,
    saved: tuple[SavedState, Checkpoint] | None = None,
    disk: Path | None = None,
) -> MachineDescription:
    """Describe the machine of a requested node; the only side effect is a look-up of UEFI firmware.

    The machine boots from cold, or continues from `saved`: the state that `state_of` returned, and
    its checkpoint. `access` are the SSH keys that cloud-init gives to the guest.
    """
    checkpoint = None
    slots, has_iommu, early = max(request.slots, DEFAULT_SLOTS), False, request.early
    source: BootSource
    if isinstance(request.image, CloudImage):
        boot = (request.cloud_image_boot or CloudImageBoot()).of(request.image)
        source = CloudImageSource(image=request.image, boot=boot)
        slots, early = request.slots, (*agent_commands(), *request.early)
    elif saved is not None:
        state, checkpoint = saved
        source, slots, has_iommu = state.origin, state.slots, state.has_iommu
    else:
        source = BuiltImageSource(
            image=request.image,
            kernel_image=request.booted_kernel,
            is_held=False,
            may_reboot=request.may_reboot,
        )
    hostname = seed = None
    if not request.skip_cloud_init:
        seed = render_node_seed(
            request,
            instance_id=f"{request.name}-{folder.name}",
            provisioner=provisioner,
            access=access,
            early=early,
        )
    elif checkpoint is None:
        seed = naming_seed(request.name)
    else:
        hostname = request.name
    return replace(
        describe(
            request.name,
            source,
            platform,
            folder,
            memory_mib=request.memory_mib,
            cpus=request.cpus,
            slots=slots,
            has_iommu=has_iommu,
            host_ports=request.host_ports,
            checkpoint=checkpoint,
            disk=disk,
            seed=seed,
        ),
        gpus=request.gpus,
        gpu_scripts=request.gpu_scripts,
        hostname=hostname,
    )


class Node:
    """A node on its machine; the machine ends with the `with` block."""

    def __init__(
        self,
        request: NodeRequest,
        machine: LabMachine,
        *,
        provisioner: Provisioner,
    ) -> None:
        self.request = request
        self.machine = machine
        self.folder = machine.folder
        self.provisioner = provisioner
        self._additional = NOTHING_MORE
        self._steps = ProvisioningSteps(provisioner)
        self._gathered: list[Evidence] = []
        self._gatherings = itertools.count(1)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            started.enter_context(self.machine)
            if self.request.skip_cloud_init:
                self._prepare_after_cloud_init()
            elif self.machine.checkpoint is not None:
                self._start_cloud_init()
            self._resources = started.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._resources.close()

    @stepped("Prepare node '{0.request.name}' by its agent")
    def _prepare_after_cloud_init(self) -> None:
        """Write the node's files and run the commands before provisioning, by the guest agent."""
        machine = self.machine
        if machine.checkpoint is None:
            machine.wait_until_cloud_init_finished(self._deadline())
        self.machine.wait_for_gpus()
        deadline = machine.deadline(_PREPARE_KVM_S)
        for file in all_files(self.request, self.provisioner):
            machine.agent.write_bytes(file.path, file.content, deadline, file.mode)
        for argv in (*self.request.early, *self.request.before):
            self.guest.output_of(*argv, timeout_s=max(1.0, deadline.remaining_s()))

    @stepped("Start cloud-init of node '{0.request.name}'")
    def _start_cloud_init(self) -> None:
        """Plug the seed into a machine that stopped before cloud-init, and continue its boot."""
        machine = self.machine
        self.machine.wait_for_gpus()
        machine.plug_seed(self.folder / SEED)
        machine.start_cloud_init()

    def hot_plug(self, gpu: RequestedGpu) -> str:
        """Plug a GPU into the running node, and return its device id."""
        return self.machine.hot_plug(gpu)

    def hot_unplug(self, device_id: str, *, in_use: bool = False) -> None:
        """Ask the guest to release a GPU, and wait until the GPU is removed.

        Raises HarnessError if a process of the guest has a GPU open, unless `in_use` is true.
        """
        self.machine.hot_unplug(device_id, in_use=in_use)

    def mark(self, words: str) -> None:
        """Write a line into the trace of every GPU, to separate earlier from later entries."""
        self.machine.mark(words)

    def gpu(self, device_id: str = "gpu0") -> EmulatedGpu:
        """Return the device model behind a plugged GPU."""
        return self.machine.gpu(device_id)

    def wait_until_provisioned(self, progress: Callable[[str], None] = ignore_progress) -> None:
        """Wait until cloud-init has finished, with or without errors.

        `progress` is called with each boot stage on the console, and with each step of the
        provisioner; the provisioner declares the pattern of its steps. On a node that skips
        cloud-init, this method runs the provisioner's command. Raises HarnessError at the
        deadline, or immediately if the guest can't finish any more.
        """
        if self.request.skip_cloud_init:
            if self.request.command is not None:
                self.provision(self.request.command)
            return
        log = self.provisioner.outcome.log
        with self._steps.run(f"Provision node '{self.request.name}' by cloud-init") as note:

            def seen(line: str) -> None:
                note(line)
                progress(line)

            self.machine.wait_until_cloud_init_finished(
                self._deadline(), seen, step=None if log is None else log.step
            )

    def provision(self, command: str) -> CommandResult:
        """Run a command of the provisioner in the guest, in the same way as cloud-init.

        A command that fails raises no error: the result has its exit code, and its whole output in
        stdout. Each call is a run of its own in the evidence: `Evidence.of_run`. Raises
        BadInputError if the provisioner declares no such command.
        """
        argv = self.provisioner.guest_command(command, output=CLOUD_INIT_OUTPUT_PATH)
        deadline = self._deadline()
        with (
            self._steps.run(f"Provision node '{self.request.name}': command '{command}'"),
            self.machine.doing(f"is provisioned by command '{command}'", deadline),
        ):
            limit_s = deadline.remaining_s() * GUEST_LIMIT_TIMES
            return self.machine.agent.run(argv, timeout_s=limit_s, deadline=deadline)

    def _deadline(self) -> Deadline:
        """Return the deadline of provisioning; it allows for the first boot of a cloud image."""
        image = self.request.image
        is_cloud_image = isinstance(image, CloudImage) or isinstance(
            image.newest_kernel, CloudImageKernel
        )
        return self.machine.deadline(
            self.provisioner.timeout_s + (_CLOUD_IMAGE_KVM_S if is_cloud_image else 0.0),
            follows_progress=True,
        )

    @property
    def guest(self) -> Guest:
        """Return operations in the guest."""
        return self.machine.guest

    @stepped("Gather evidence of node '{0.request.name}'")
    def evidence(
        self, *, files: Sequence[str] = (), commands: Mapping[str, Argv] | None = None
    ) -> Evidence:
        """Return the evidence of this node as it is now.

        Each call gathers new evidence into a folder of its own, so that earlier evidence does not
        change. `files` adds files of the guest, by absolute paths that may have `*` and `?`; read
        them by `Evidence.file`, `files` and `paths`. `commands` adds the output of commands, argv
        by name; read it by `Evidence.output_of` and `exit_code_of`. These files and outputs are
        also in the evidence that is kept of a failed test.

        Raises BadInputError if a path or command can't be gathered; the message names it.
        """
        additional = AdditionalEvidence(files=files, commands=commands or {})
        evidence = self.collect(
            self.folder / f"evidence-{next(self._gatherings)}", additional=additional
        )
        self._additional = self._additional.merged(additional)
        self._gathered.append(evidence)
        return evidence

    @stepped("Gather the result of provisioning of node '{0.request.name}'")
    def result(self) -> Evidence:
        """Return evidence that contains only the reports of provisioning.

        This method takes a fraction of the time of `evidence`; use it in tests that are only about
        a decision or an exit code. Expectations on anything else raise HarnessError.
        """
        folder = self.folder / f"evidence-{next(self._gatherings)}"
        # This evidence is not added to `gathered`: if the test fails, complete evidence is
        # gathered instead.
        return self._steps.told_by(
            evidence_collection.collect_result(self.machine, folder, provisioner=self.provisioner)
        )

    def state(self) -> NodeState:
        """Return the state of the whole node for `expect.unchanged`; the node should be idle."""
        return self.machine.state()

    @property
    def gathered(self) -> tuple[Evidence, ...]:
        """Return the evidence gathered so far, oldest first."""
        return tuple(self._gathered)

    def collect(self, folder: Path, *, additional: AdditionalEvidence = NOTHING_MORE) -> Evidence:
        """Gather evidence into `folder`, from the host alone if the guest does not answer."""
        return self._steps.told_by(
            evidence_collection.collect(
                self.machine,
                folder,
                kernels=self._kernels(),
                provisioner=self.provisioner,
                additional=additional,
            )
        )

    def collect_available(self) -> Evidence:
        """Gather the available evidence of a node that might not answer, within a short time.

        The evidence has the files and commands of all earlier calls of `evidence`.
        """
        return self._steps.told_by(
            evidence_collection.collect_available(
                self.machine,
                kernels=self._kernels(),
                provisioner=self.provisioner,
                additional=self._additional,
            )
        )

    def _kernels(self) -> Sequence[str] | None:
        """Return the image's kernel versions, or None for a cloud image: its guest lists them."""
        image = self.request.image
        if isinstance(image, CloudImage):
            return None
        return [kernel.version for kernel in image.kernels]

    @stepped("Power node '{0.request.name}' off")
    def power_off(self) -> None:
        """Power the node off and wait until its machine has ended and its disk is complete.

        Raises HarnessError if the node does not power off.
        """
        self.guest.power_off()
        self.machine.vm.wait_for_power_off(self.machine.deadline(_POWER_OFF_KVM_S))
