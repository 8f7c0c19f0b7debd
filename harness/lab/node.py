"""One node: a machine that provisions itself by cloud-init, and the evidence of it."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.argv import check_commands
from harness.cloudinit import (
    GuestFile,
    UserData,
    provisioning_command,
    provisioning_files,
    render_seed,
)
from harness.errors import BadInputError, HarnessError
from harness.evidence.request import AdditionalEvidence
from harness.image import CloudImage
from harness.lab import evidence_collection
from harness.lab.machine import ignore_progress
from harness.lab.machine_request import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from harness.cloudinit import SeedFiles, SshAccess
    from harness.evidence import Evidence
    from harness.gpu import GpuModel
    from harness.gpu.emulated import EmulatedGpu
    from harness.gpu.script import GpuScript
    from harness.image import Image, Kernel
    from harness.lab.cloud_images import CloudImageBoot
    from harness.lab.machine import LabMachine
    from harness.machine.channels.guest import Guest
    from harness.payload import Payload
    from harness.provisioning.command import Argv, CommandResult
    from harness.provisioning.wait import Deadline

#: Seconds that KVM is given; TCG gets them times its patience.
_PROVISION_KVM_S = 60.0
#: Includes the boot loader's delay, and all that a distribution does at its first boot.
_PROVISION_CLOUD_IMAGE_KVM_S = 150.0
_POWER_OFF_KVM_S = 15.0

METADATA_CACHE = "/opt/azure/containers/imds_instance_metadata_cache.json"
STAND_INS = "/etc/gpu-node/stand-ins"


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """A node as requested.

    A cloud image boots as `cloud_image_boot` says, and always from cold; `kernel` is for built
    images.
    """

    name: str
    """Names the machine, its folder and its evidence."""
    image: Image | CloudImage
    """A built image, with or without the driver baked in, or a cloud image."""
    kernel: Kernel | None = None
    """The kernel to boot; by default the newest of the image."""
    command: str | None = "boot"
    """The provisioning command that cloud-init runs; None for none."""
    config: Mapping[str, object] = field(default_factory=dict)
    """Keys for provisioning, added to those that follow from image and GPUs."""
    gpus: Sequence[GpuModel] = ()
    """Models of the GPUs that are plugged from the start."""
    gpu_scripts: Mapping[str, GpuScript] = field(default_factory=dict)
    """Faults of a GPU from the moment it is plugged, by device id (`gpu0`)."""
    spare_slots: int = 1
    """Empty slots for GPUs that are plugged later."""
    stand_ins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables of stand-in units, by unit: `{"nvidia-dcgm": {"START_DELAY_S": "30"}}`."""
    files: Sequence[GuestFile] = ()
    """Files that cloud-init writes into the guest."""
    before: Sequence[Argv] = ()
    """Commands that cloud-init runs before provisioning, each a list of words."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the virtual machine in the cached instance metadata."""
    vm_size: str = "Standard_ND96isr_H100_v5"
    """Its VM size there."""
    memory_mib: int = 1536
    """The guest's memory in MiB."""
    cloud_image_boot: CloudImageBoot | None = None
    """How a cloud image boots: its firmware, or one kernel without a boot loader."""

    def __post_init__(self) -> None:
        check_commands(self.before, source="NodeRequest", key="before")
        if self.kernel is not None and isinstance(self.image, CloudImage):
            raise BadInputError(
                f"The cloud image '{self.image.name}' boots the kernel that its boot loader chooses; "
                "use `boot_once`, or extract a kernel and name it in 'cloud_image_boot'.",
                source="NodeRequest",
                key="kernel",
            )

    @property
    def slots(self) -> int:
        """Return how many GPUs can be plugged into the node."""
        return len(self.gpus) + self.spare_slots

    @property
    def booted_kernel(self) -> Kernel:
        """Return the kernel that a built image boots; raises HarnessError for a cloud image."""
        if isinstance(self.image, CloudImage):
            raise HarnessError(
                f"The boot loader of the cloud image '{self.image.name}' selects its kernel; "
                "read it from the running machine."
            )
        return self.kernel or self.image.newest_kernel

    def metadata_cache(self) -> GuestFile:
        """Return the instance-metadata cache that AKS leaves on a node: its VM tags and size."""
        tags = [{"name": name, "value": value} for name, value in self.tags.items()]
        document = {"compute": {"tagsList": tags, "vmSize": self.vm_size}}
        return GuestFile(path=METADATA_CACHE, content=json.dumps(document).encode())

    def node_config(self) -> dict[str, object]:
        """Return the configuration that provisioning reads."""
        config: dict[str, object] = {
            "gpu_node": bool(self.gpus),
            "config_gpu_driver_if_needed": True,
            "gpu_driver_type": "cuda-lts",
        }
        if self.image.driver is not None:
            config["gpu_driver_version"] = self.image.driver.version
            config["gpu_image_sha"] = self.image.driver.sha
        return {**config, **self.config}


def stand_in_files(stand_ins: Mapping[str, Mapping[str, str]]) -> tuple[GuestFile, ...]:
    """Return the environment files that make stand-in units slow, or fail."""
    return tuple(
        GuestFile(
            path=f"{STAND_INS}/{unit}.env",
            content="".join(f"{key}={value}\n" for key, value in variables.items()).encode(),
        )
        for unit, variables in stand_ins.items()
    )


def render_node_seed(
    request: NodeRequest,
    *,
    instance_id: str,
    payload: Payload,
    access: SshAccess,
    early: Sequence[Argv] = (),
) -> SeedFiles:
    """Render the seed by which cloud-init provisions a requested node; `early` goes to `bootcmd`."""
    commands: list[Argv] = [list(argv) for argv in request.before]
    if request.command is not None:
        commands.append(list(provisioning_command(payload, request.command)))
    user_data = UserData(
        hostname=request.name,
        access=access,
        files=provisioning_files(
            payload,
            request.node_config(),
            (request.metadata_cache(), *stand_in_files(request.stand_ins), *request.files),
        ),
        commands=commands,
        early=early,
    )
    return render_seed(user_data, instance_id=instance_id)


class Node:
    """A node on its machine; ends with its `with` block."""

    def __init__(
        self,
        request: NodeRequest,
        machine: LabMachine,
        *,
        payload: Payload,
    ) -> None:
        self.request = request
        self.machine = machine
        self.folder = machine.folder
        self._payload = payload
        self._additional = evidence_collection.NOTHING_MORE
        self._gathered: list[Evidence] = []
        self._gatherings = itertools.count(1)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            started.enter_context(self.machine)
            if self.machine.checkpoint is not None:
                self._start_cloud_init()
            self._resources = started.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._resources.close()

    def _start_cloud_init(self) -> None:
        """Plug the seed into a machine that stopped before cloud-init, and continue its boot."""
        machine = self.machine
        for model in self.request.gpus:
            machine.wait_for_gpu(model)
        machine.plug_seed(self.folder / SEED)
        machine.start_cloud_init()

    def hot_plug(self, model: GpuModel) -> str:
        """Plug a GPU into the running node, and return its device id."""
        return self.machine.hot_plug(model)

    def hot_unplug(self, device_id: str) -> None:
        """Ask the guest to release a GPU, and wait until it is removed."""
        self.machine.hot_unplug(device_id)

    def mark(self, words: str) -> None:
        """Write a line into the trace of every GPU, which separates before from after."""
        self.machine.mark(words)

    def gpu(self, device_id: str = "gpu0") -> EmulatedGpu:
        """Return the device model behind a plugged GPU."""
        return self.machine.gpu(device_id)

    def wait_until_provisioned(self, progress: Callable[[str], None] = ignore_progress) -> None:
        """Wait until cloud-init has finished, with or without errors.

        `progress` is called with boot stages and provisioning steps as the console shows them.
        Raises HarnessError at the deadline, or at once when the guest can't finish any more.
        """
        self.machine.wait_until_cloud_init_finished(self._deadline(), progress)

    def provision(self, command: str) -> CommandResult:
        """Run one of provisioning's commands in the guest, as cloud-init would.

        A failure of the command is a result. Its outcome and exit code are stored for the evidence.
        """
        return self.guest.run(
            *provisioning_command(self._payload, command),
            timeout_s=self._deadline().remaining_s(),
        )

    def _deadline(self) -> Deadline:
        """Return the deadline of provisioning, which includes a cloud image's first boot."""
        is_cloud_image = isinstance(self.request.image, CloudImage)
        return self.machine.deadline(
            _PROVISION_CLOUD_IMAGE_KVM_S if is_cloud_image else _PROVISION_KVM_S
        )

    @property
    def guest(self) -> Guest:
        """Return operations in the guest."""
        return self.machine.guest

    def evidence(
        self, *, files: Sequence[str] = (), commands: Mapping[str, Argv] | None = None
    ) -> Evidence:
        """Return the evidence of this node as it is now.

        Each call gathers it again, into a folder of its own, so that earlier evidence neither changes
        nor is taken for new. In addition to what is gathered on every node, it has `files` of the
        guest, by absolute paths that may have `*` and `?`, which `Evidence.file`, `files` and `paths`
        return; and the output of `commands`, argv by name, which `Evidence.output_of` and
        `exit_code_of` return. They are in the evidence that is kept of a failed test too.

        Raises BadInputError, which names the path or command that can't be gathered.
        """
        additional = AdditionalEvidence(files=files, commands=commands or {})
        evidence = self.collect(
            self.folder / f"evidence-{next(self._gatherings)}", additional=additional
        )
        self._additional = self._additional.merged(additional)
        self._gathered.append(evidence)
        return evidence

    @property
    def gathered(self) -> tuple[Evidence, ...]:
        """Return the evidence gathered so far, oldest first."""
        return tuple(self._gathered)

    def collect(
        self, folder: Path, *, additional: AdditionalEvidence = evidence_collection.NOTHING_MORE
    ) -> Evidence:
        """Gather evidence into `folder`, the host's side also where the guest does not answer."""
        return evidence_collection.collect(
            self.machine, folder, kernels=self._kernels(), additional=additional
        )

    def collect_available(self) -> Evidence:
        """Gather what is available where the node may not answer; never wait for more.

        It has all files and commands that `evidence` was asked for.
        """
        return evidence_collection.collect_available(
            self.machine, kernels=self._kernels(), additional=self._additional
        )

    def _kernels(self) -> Sequence[str] | None:
        """Return the versions of the image's kernels; None for a cloud image, whose guest is asked."""
        image = self.request.image
        if isinstance(image, CloudImage):
            return None
        return [kernel.version for kernel in image.kernels]

    def power_off(self) -> None:
        """Power the node off and wait until its machine has ended and its disk is complete.

        Raises HarnessError when it does not power off.
        """
        self.guest.power_off()
        self.machine.vm.wait_for_power_off(self.machine.deadline(_POWER_OFF_KVM_S))
