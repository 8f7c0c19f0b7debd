"""One node: a machine that provisions itself by cloud-init, and the evidence of it."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.cloudinit import (
    FINISHED,
    GuestFile,
    UserData,
    provisioning_command,
    provisioning_files,
    render_seed,
    write_seed,
)
from harness.evidence.collect import collect_guest, keep_host_files, node_request
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.mpqemu import MpqemuServer
from harness.machine.guest import Guest
from harness.machine.qemu import QemuMachine
from harness.machine.spec import DirectKernel, MachineSpec
from harness.machine.ssh import SshRunner
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from harness.evidence import Evidence
    from harness.gpu import GpuModel
    from harness.image import Image, Kernel
    from harness.machine.spec import Accelerator
    from harness.machine.ssh import SshIdentity
    from harness.payload import Payload

#: Seconds that KVM is given; TCG gets them times its patience.
_PROVISION_KVM_S = 60.0
_CONNECT_KVM_S = 10.0
_POWER_OFF_KVM_S = 15.0
#: Seconds after which a guest blocked on its GPU is called stuck.
_STALL_S = 60.0

METADATA_CACHE = "/opt/azure/containers/imds_instance_metadata_cache.json"
#: What the console shows on the way: cloud-init's stages, and provisioning's steps as they end.
_MILESTONE = r"running '[a-z:-]+'|step [a-z-]+ (?:done|failed) after [0-9.]+ s"

STAND_INS = "/etc/gpu-node/stand-ins"


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """A node as asked for.

    `command` is the provisioning command that cloud-init runs, or None for none. `config` is
    added to what follows from the image (the driver's version) and from `gpus` (whether it is a
    GPU node). `stand_ins` sets variables of a stand-in unit: {"nvidia-dcgm": {"START_DELAY_S":
    "30"}}. `tags` and `vm_size` go into the instance-metadata cache. `spare_slots` are empty, for
    GPUs that come later.
    """

    name: str
    image: Image
    kernel: Kernel | None = None
    command: str | None = "boot"
    config: Mapping[str, object] = field(default_factory=dict)
    gpus: Sequence[GpuModel] = ()
    spare_slots: int = 1
    stand_ins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    files: Sequence[GuestFile] = ()
    before: Sequence[Sequence[str]] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    vm_size: str = "Standard_ND96isr_H100_v5"
    memory_mib: int = 1536

    @property
    def booted_kernel(self) -> Kernel:
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


def _say_nothing(_line: str) -> None:
    """Listen to no progress."""


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
    """A booted node; ends with its `with` block."""

    def __init__(
        self,
        request: NodeRequest,
        *,
        folder: Path,
        disk: Path,
        payload: Payload,
        identity: SshIdentity,
        accelerator: Accelerator,
        qemu: str,
        require_transport: Callable[[], None],
    ) -> None:
        self.request = request
        self._require_transport = require_transport
        self.folder = folder
        self._identity = identity
        self._payload = payload
        kernel = request.booted_kernel
        self._spec = MachineSpec(
            name=request.name,
            accelerator=accelerator,
            kernel=DirectKernel(
                version=kernel.version, vmlinuz=kernel.vmlinuz, initrd=kernel.initrd
            ),
            disk=disk,
            seed=folder / "seed.iso",
            memory_mib=request.memory_mib,
            root_ports=len(request.gpus) + request.spare_slots,
            qemu=qemu,
        )
        self._resources = contextlib.ExitStack()
        self._servers: dict[str, MpqemuServer] = {}
        self._evidence: Evidence | None = None
        self._gatherings = itertools.count(1)

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

    def _start(self) -> None:
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
        )
        write_seed(
            render_seed(user_data, instance_id=f"{request.name}-{self.folder.name}"),
            self.folder / "seed.iso",
        )
        attachments = [
            self._serve(f"gpu{index}", model).attachment()
            for index, model in enumerate(request.gpus)
        ]
        self.machine = QemuMachine(self._spec, self.folder, attachments)
        self._resources.enter_context(self.machine)

    def _serve(self, device_id: str, model: GpuModel) -> MpqemuServer:
        self._require_transport()
        server = MpqemuServer(
            EmulatedGpu(model, bars_mib=model.bars_mib.mpqemu), device_id=device_id
        )
        self._servers[device_id] = self._resources.enter_context(server)
        return server

    def hot_plug(self, model: GpuModel) -> str:
        """Plug a GPU into the running node, and return its device id."""
        device_id = f"gpu{len(self._servers)}"
        self.machine.plug(self._serve(device_id, model).attachment())
        return device_id

    def hot_unplug(self, device_id: str) -> None:
        """Ask the guest to let go of a GPU, and wait until it has."""
        self.machine.unplug(device_id, self._deadline(_CONNECT_KVM_S))

    def gpu(self, device_id: str = "gpu0") -> EmulatedGpu:
        """Return the device model behind a plugged GPU."""
        return self._servers[device_id].gpu

    def wait_until_provisioned(self, progress: Callable[[str], None] = _say_nothing) -> None:
        """Wait until cloud-init has finished, well or badly.

        `progress` hears of boot stages and of provisioning's steps as the console shows them.
        Raises HarnessError when it has not in time, or at once when the guest can't any more.
        """
        deadline = self._deadline(_PROVISION_KVM_S)
        seen = ""
        while seen != FINISHED:
            seen = self.machine.console.wait_for(
                f"{FINISHED}|{_MILESTONE}",
                deadline,
                what="that cloud-init has finished",
                trouble=self._trouble,
            )
            progress(seen)
        self.guest.wait_for_cloud_init_result(deadline)

    def _trouble(self) -> str | None:
        """Say why nothing good can come of this node any more, or None."""
        now_s = SYSTEM_CLOCK.monotonic()
        for device_id, server in self._servers.items():
            state = server.state
            if state.pending_since_s is not None and now_s - state.pending_since_s > _STALL_S:
                return f"its emulated GPU '{device_id}' is stuck: {state.describe(now_s)}"
        return self.machine.trouble()

    @property
    def guest(self) -> Guest:
        """Return the guest's verbs; the first use opens the SSH connection."""
        return Guest(self.request.name, self._runner())

    def _runner(self) -> SshRunner:
        if self._ssh is None:
            runner = SshRunner(
                name=self.request.name,
                port=self.machine.ssh_port(),
                identity=self._identity,
                folder=self.folder,
            )
            self._resources.callback(runner.close)
            runner.connect(self._deadline(_CONNECT_KVM_S))
            self._ssh = runner
        return self._ssh

    _ssh: SshRunner | None = None

    def evidence(self) -> Evidence:
        """Return the evidence of this node as it is now.

        It is gathered again at each call, into a folder of its own: what was gathered before
        stays as it is, and nothing of it is taken for new.
        """
        self._evidence = self.collect(self.folder / f"evidence-{next(self._gatherings)}")
        return self._evidence

    @property
    def gathered(self) -> Evidence | None:
        """Return the evidence gathered last."""
        return self._evidence

    def collect(self, folder: Path) -> Evidence:
        """Gather evidence into `folder`, the host's side also where the guest does not answer."""
        request = node_request([kernel.version for kernel in self.request.image.kernels])
        try:
            return collect_guest(self._runner(), request, folder)
        finally:
            self.keep_host_side(folder)

    def keep_host_side(self, folder: Path) -> None:
        """Copy what the host knows of this machine into `folder`."""
        keep_host_files(
            folder,
            {
                "argv.txt": self.folder / "argv.txt",
                "stderr.log": self.machine.stderr_log,
                "serial.log": self.machine.serial_log,
            },
            {
                "qmp-events.json": json.dumps(
                    [
                        {"name": event.name, "at_s": event.at_s, "data": dict(event.data)}
                        for event in self.machine.events
                    ],
                    indent=2,
                ),
                **{
                    f"{device_id}-trace.txt": server.gpu.trace.render()
                    for device_id, server in self._servers.items()
                },
            },
        )

    def power_off(self) -> None:
        """Power the node off and wait until QEMU has ended, its disk complete.

        Raises HarnessError when it does not go down.
        """
        self.guest.power_off()
        self.machine.wait_for_power_off(self._deadline(_POWER_OFF_KVM_S))

    def _deadline(self, kvm_s: float) -> Deadline:
        return Deadline.after(kvm_s * self._spec.accelerator.patience)
