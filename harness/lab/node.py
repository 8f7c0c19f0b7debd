"""One node: a machine that provisions itself by cloud-init, and the evidence of it."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.cloudinit import (
    GuestFile,
    UserData,
    provisioning_command,
    provisioning_files,
    render_seed,
    write_seed,
)
from harness.errors import BadInputError, HarnessError
from harness.image import StockImage
from harness.lab import gathering
from harness.lab.machine import SEED, say_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from harness.cloudinit import SeedFiles
    from harness.evidence import Evidence
    from harness.gpu import GpuModel
    from harness.gpu.emulated import EmulatedGpu
    from harness.gpu.script import GpuScript
    from harness.image import Image, Kernel
    from harness.lab.machine import LabMachine
    from harness.lab.stock import StockBoot
    from harness.machine.guest import Guest
    from harness.machine.ssh import SshIdentity
    from harness.payload import Payload
    from harness.provisioning.command import CommandResult
    from harness.provisioning.wait import Deadline

#: Seconds that KVM is given; TCG gets them times its patience.
_PROVISION_KVM_S = 60.0
#: A boot loader's wait, and all of what a distribution does at a first boot.
_PROVISION_STOCK_KVM_S = 150.0
_POWER_OFF_KVM_S = 15.0

METADATA_CACHE = "/opt/azure/containers/imds_instance_metadata_cache.json"
STAND_INS = "/etc/gpu-node/stand-ins"


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """A node as asked for.

    `command` is the provisioning command that cloud-init runs, or None for none. `config` is
    added to what follows from the image (the driver's version) and from `gpus` (whether it is a
    GPU node). `stand_ins` sets variables of a stand-in unit: {"nvidia-dcgm": {"START_DELAY_S":
    "30"}}. `tags` and `vm_size` go into the instance-metadata cache. `spare_slots` are empty, for
    GPUs that come later. `gpu_scripts` say by device id ("gpu0") what is wrong with a GPU.

    A stock image boots as `stock` says, and always from cold; `kernel` is for built ones.
    """

    name: str
    image: Image | StockImage
    kernel: Kernel | None = None
    command: str | None = "boot"
    config: Mapping[str, object] = field(default_factory=dict)
    gpus: Sequence[GpuModel] = ()
    gpu_scripts: Mapping[str, GpuScript] = field(default_factory=dict)
    spare_slots: int = 1
    stand_ins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    files: Sequence[GuestFile] = ()
    before: Sequence[Sequence[str]] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    vm_size: str = "Standard_ND96isr_H100_v5"
    memory_mib: int = 1536
    stock: StockBoot | None = None

    def __post_init__(self) -> None:
        if self.kernel is not None and isinstance(self.image, StockImage):
            raise BadInputError(
                f"The stock image '{self.image.name}' boots the kernel that its boot loader takes; "
                "choose one by `boot_once`, or take one out of the image and name it in 'stock'.",
                source="NodeRequest",
                key="kernel",
            )

    @property
    def slots(self) -> int:
        """Return how many GPUs the node has room for."""
        return len(self.gpus) + self.spare_slots

    @property
    def booted_kernel(self) -> Kernel:
        """Return the kernel that a built image boots; raises HarnessError for a stock image."""
        if isinstance(self.image, StockImage):
            raise HarnessError(
                f"Which kernel the stock image '{self.image.name}' boots is its boot loader's to "
                "choose; ask the machine."
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


class Node:
    """A node on its machine; ends with its `with` block."""

    def __init__(
        self,
        request: NodeRequest,
        machine: LabMachine,
        *,
        payload: Payload,
        identity: SshIdentity,
        early: Sequence[Sequence[str]] = (),
    ) -> None:
        self.request = request
        self.machine = machine
        self.folder = machine.folder
        self._payload = payload
        self._identity = identity
        self._early = early
        self._gathered: list[Evidence] = []
        self._gatherings = itertools.count(1)

    def __enter__(self) -> Self:
        write_seed(self._render_seed(), self.folder / SEED)
        with contextlib.ExitStack() as started:
            started.enter_context(self.machine)
            if self.machine.checkpoint is not None:
                self._let_cloud_init_run()
            self._resources = started.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._resources.close()

    def _render_seed(self) -> SeedFiles:
        request = self.request
        commands = [list(argv) for argv in request.before]
        if request.command is not None:
            commands.append(list(provisioning_command(self._payload, request.command)))
        user_data = UserData(
            hostname=request.name,
            access=self._identity.access,
            files=provisioning_files(
                self._payload,
                request.node_config(),
                (request.metadata_cache(), *stand_in_files(request.stand_ins), *request.files),
            ),
            commands=commands,
            early=self._early,
        )
        return render_seed(user_data, instance_id=f"{request.name}-{self.folder.name}")

    def _let_cloud_init_run(self) -> None:
        """Plug the seed into a machine held before cloud-init, and let it boot on."""
        machine = self.machine
        for model in self.request.gpus:
            machine.wait_for_gpu(model)
        machine.plug_seed(self.folder / SEED)
        machine.let_cloud_init_run()

    def hot_plug(self, model: GpuModel) -> str:
        """Plug a GPU into the running node, and return its device id."""
        return self.machine.hot_plug(model)

    def hot_unplug(self, device_id: str) -> None:
        """Ask the guest to let go of a GPU, and wait until it has."""
        self.machine.hot_unplug(device_id)

    def mark(self, words: str) -> None:
        """Write a line into the trace of every GPU, to tell before from after by."""
        self.machine.mark(words)

    def gpu(self, device_id: str = "gpu0") -> EmulatedGpu:
        """Return the device model behind a plugged GPU."""
        return self.machine.gpu(device_id)

    def wait_until_provisioned(self, progress: Callable[[str], None] = say_nothing) -> None:
        """Wait until cloud-init has finished, well or badly.

        `progress` hears of boot stages and of provisioning's steps as the console shows them.
        Raises HarnessError when it has not in time, or at once when the guest can't any more.
        """
        self.machine.wait_until_cloud_init_finished(self._deadline(), progress)

    def provision(self, command: str) -> CommandResult:
        """Run one of provisioning's commands in the guest, as cloud-init would.

        A failure of it is a result. Its outcome and exit code lie where evidence looks for them.
        """
        return self.guest.run(
            *provisioning_command(self._payload, command),
            timeout_s=self._deadline().remaining_s(),
        )

    def _deadline(self) -> Deadline:
        """Return until when provisioning may take, with a stock image's first boot before it."""
        is_stock = isinstance(self.request.image, StockImage)
        return self.machine.deadline(_PROVISION_STOCK_KVM_S if is_stock else _PROVISION_KVM_S)

    @property
    def guest(self) -> Guest:
        """Return the guest's verbs."""
        return self.machine.guest

    def evidence(self) -> Evidence:
        """Return the evidence of this node as it is now.

        It is gathered again at each call, into a folder of its own: what was gathered before
        stays as it is, and nothing of it is taken for new.
        """
        evidence = self.collect(self.folder / f"evidence-{next(self._gatherings)}")
        self._gathered.append(evidence)
        return evidence

    @property
    def gathered(self) -> tuple[Evidence, ...]:
        """Return the evidence gathered so far, oldest first."""
        return tuple(self._gathered)

    def collect(self, folder: Path) -> Evidence:
        """Gather evidence into `folder`, the host's side also where the guest does not answer."""
        return gathering.collect(self.machine, folder, kernels=self._kernels())

    def salvage(self) -> Evidence:
        """Gather what can be had where the node may be beyond reach; never wait for more."""
        return gathering.salvage(self.machine, kernels=self._kernels())

    def _kernels(self) -> Sequence[str] | None:
        """Return the versions of the image's kernels; what a stock image has, its guest knows."""
        image = self.request.image
        if isinstance(image, StockImage):
            return None
        return [kernel.version for kernel in image.kernels]

    def power_off(self) -> None:
        """Power the node off and wait until its machine has ended, its disk complete.

        Raises HarnessError when it does not go down.
        """
        self.guest.power_off()
        self.machine.vm.wait_for_power_off(self.machine.deadline(_POWER_OFF_KVM_S))
