"""Requests for nodes, and the descriptions of the machines of requested nodes."""

from __future__ import annotations

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
from harness.image import CloudImage
from harness.image.own_kernel import KernelFiles, KernelPackages
from harness.lab.cloud_images import CloudImageBoot, CloudImageSource, agent_commands
from harness.lab.description import describe
from harness.lab.saved_states import (
    BuiltImageSource,
    booted,
    cloud_init_done,
    naming_seed,
)
from harness.lab.stand_ins import check_stand_ins, stand_in_files
from harness.machine.description.spec import DEFAULT_CPUS, DEFAULT_MEMORY_MIB, DEFAULT_SLOTS
from harness.provisioner import BOOT, NodeFact, Provisioner, runner_file
from harness.provisioner.user_data import merge_user_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from harness.cloudinit import SeedFiles, SshAccess
    from harness.gpu.script import GpuScript
    from harness.image import Image, Kernel
    from harness.image.own_kernel import OwnKernel
    from harness.lab.description import BootSource, MachineDescription, Platform
    from harness.lab.gpu_sources import RequestedGpu
    from harness.lab.saved_states import SavedState
    from harness.machine.checkpoint.store import Checkpoint
    from harness.machine.description.spec import HostPort
    from harness.provisioning.command import Argv

#: `harness.provisioning` refuses a larger factor.
MAX_TIME_LIMIT_MULTIPLIER = 1000.0


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """A request for a node.

    A cloud image boots as `cloud_image_boot` says, and never starts as a clone. `kernel` is for
    built images.
    """

    name: str
    """The name of the machine, of its folder and of its evidence."""
    image: Image | CloudImage
    """A built image, with or without the driver baked in, or a cloud image."""
    kernel: Kernel | OwnKernel | None = None
    """The kernel to boot: your own kernel, or a kernel of the image (by default the newest)."""
    provisioner: Provisioner | None = None
    """The provisioner to use. The default is the run's provisioner, from `--provisioner`."""
    command: str | None = BOOT
    """The provisioner's command that cloud-init runs. With None, cloud-init runs no command."""
    config: Mapping[str, object] = field(default_factory=dict)
    """Keys of the provisioner's configuration, in addition to the keys in its declaration."""
    gpus: Sequence[RequestedGpu] = ()
    """The GPUs that are plugged in at the start: models, or `GpuChoice` for GPUs of the host."""
    gpu_scripts: Mapping[str, GpuScript] = field(default_factory=dict)
    """The faults that a GPU has as soon as it is plugged in, by device id (`gpu0`)."""
    spare_slots: int = 1
    """The number of empty slots for GPUs that are plugged in later."""
    stand_ins: Mapping[str, Mapping[str, str | float]] = field(default_factory=dict)
    """Variables of stand-ins, by the stand-in's name: `{"nvidia-dcgm": {"START_DELAY_S": "30"}}`.
    A value is a text or a number. An unknown name or variable raises BadInputError."""
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
    """Ports of the host's loopback that the guest can reach. The fixture `registry` adds its port."""
    cloud_image_boot: CloudImageBoot | None = None
    """How a cloud image boots: its firmware, or one kernel without a boot loader."""
    skip_cloud_init: bool = False
    """Continue from a state after cloud-init: the guest agent writes the files and runs the commands.
    This saves many seconds in tests that are not about the boot."""
    derive: Callable[[SavedState], SavedState] | None = None
    """Derives a saved state from the state after cloud-init, for example by installing programs.
    The node continues from the derived state. This needs `skip_cloud_init`."""
    time_limit_multiplier: float | None = None
    """The factor for the provisioner's own time limits, for provisioners that declare a key for
    it. The default is `--timeout-multiplier`. On a busy host, this default is multiplied by the
    number of tasks per processor."""
    may_reboot: bool = False
    """Keep the machine running when its guest reboots. The node then does not start as a clone."""

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
                "'derive' changes a state that was saved after cloud-init had run; set "
                "'skip_cloud_init' too, so that the node starts from the changed state.",
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
    """Raise BadInputError if a node skips cloud-init, but its provisioner has user-data."""
    if request.skip_cloud_init and provisioner.user_data:
        raise BadInputError(
            f"Cloud-init applies the user-data of provisioner '{provisioner.name}', so a node "
            "that skips cloud-init would lack this user-data; leave 'skip_cloud_init' out of the request.",
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
    """Describe the machine of a requested node. The only side effect is a look-up of UEFI firmware.

    The machine does a cold boot, or continues from `saved`: the state that `state_of` returned,
    and its checkpoint. `access` are the SSH keys that cloud-init installs in the guest.
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
