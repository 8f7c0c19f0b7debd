"""Images, requests and machine services for tests of the lab."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.gpu.transport import Transport
from harness.image import CloudImage, CloudImageKernel, DriverImage, Image, Kernel
from harness.lab.description import MachineDescription, Platform, describe
from harness.lab.gpu_sources import GpuSources
from harness.lab.guest_channels import MachineServices
from harness.lab.machine import LabMachine
from harness.lab.node_request import NodeRequest
from harness.lab.saved_states import BuiltImageSource
from harness.machine.capacity.broker import Broker
from harness.machine.channels.ssh import SshIdentity
from harness.machine.description.spec import DEFAULT_MEMORY_MIB, DEFAULT_SLOTS, Accelerator
from harness.machine.entrance.roster import Roster
from harness.payload import Payload
from harness.progress import ignore_progress
from harness.progress.activities import Activities
from harness.provisioner.gpu_node import gpu_node_provisioner
from harness.settings import GpuSource
from suites.unit.gpu.models import a_model
from suites.unit.lab.drivers import StuckDriver

if TYPE_CHECKING:
    from harness.gpu.passthrough.pool import GpuPool
    from harness.progress import ProgressEvent
    from harness.provisioner import Provisioner


def an_image() -> Image:
    folder = Path("/images/debian-12")
    return Image(
        name="debian-12",
        key="0" * 64,
        folder=folder,
        disk=folder / "disk.qcow2",
        kernels=tuple(
            Kernel(version=version, vmlinuz=folder / version, initrd=folder / f"{version}.img")
            for version in ("6.1.0-55", "6.1.0-56")
        ),
        driver=DriverImage(
            repository="mcr.microsoft.com/aks/aks-gpu-cuda-lts",
            version="580.1",
            sha="2026",
        ),
    )


def a_cloud_kernel(version: str = "6.8.0-31") -> CloudImageKernel:
    folder = Path("/derived/kernels")
    return CloudImageKernel(
        version=version,
        vmlinuz=folder / f"vmlinuz-{version}",
        initrd=folder / f"initrd.img-{version}",
        command_line=("root=LABEL=cloudimg-rootfs", "ro"),
    )


def a_prepared_image() -> Image:
    """Return a node image that was made from a cloud image."""
    return replace(an_image(), kernels=(a_cloud_kernel(),))


def a_provisioner(digest: str = "0" * 64) -> Provisioner:
    """Return the harness's own provisioner with an empty zipapp."""
    return gpu_node_provisioner(Payload(content=b"", digest=digest))


def a_request(**changes: Any) -> NodeRequest:
    return replace(NodeRequest(name="node", image=an_image()), **changes)


def a_booting_source() -> BuiltImageSource:
    image = an_image()
    return BuiltImageSource(image=image, kernel_image=image.newest_kernel, is_held=False)


#: The names of the parameters of `describe`.
DESCRIBED = frozenset(inspect.signature(describe).parameters)


def a_description(
    folder: Path, *, platform: Platform | None = None, **changes: Any
) -> MachineDescription:
    """Describe a node's machine in `folder`; `changes` set arguments or fields of the description."""
    given = {key: changes.pop(key) for key in list(changes) if key in DESCRIBED}
    return replace(
        describe(
            given.pop("name", "node"),
            given.pop("source", a_booting_source()),
            platform or a_platform(),
            folder,
            **{"memory_mib": DEFAULT_MEMORY_MIB, "slots": DEFAULT_SLOTS, **given},
        ),
        **changes,
    )


def a_platform(accelerator: Accelerator = Accelerator.TCG) -> Platform:
    return Platform(accelerator=accelerator, qemu="qemu-that-is-not-there")


def a_lab_machine(
    folder: Path,
    *,
    services: MachineServices | None = None,
    accelerator: Accelerator = Accelerator.TCG,
    aperture_mib: int = 0,
    **changes: Any,
) -> LabMachine:
    described = a_description(folder, platform=a_platform(accelerator), **changes)
    spec = replace(described.spec, root_port_aperture_mib=aperture_mib)
    return LabMachine(replace(described, spec=spec), services or machine_services(folder))


def no_pool() -> GpuPool:
    raise AssertionError("This test must not open the pool of the host's GPUs.")


def emulated_gpus() -> GpuSources:
    return GpuSources(source=GpuSource.EMULATED, pool=no_pool, any_model=a_model, model_folders=())


def machine_services(folder: Path) -> MachineServices:
    return MachineServices(
        driver=StuckDriver(),
        agent_program=b"",
        identity=lambda: SshIdentity(folder=folder),
        broker=Broker(folder / "room"),
        transport=lambda: Transport.MPQEMU,
        gpu_sources=emulated_gpus(),
        patience=1.0,
        roster=Roster(folder / "machines"),
        report=lambda _: None,
        activities=Activities(ignore_progress),
    )


def a_cloud_image(**changes: Any) -> CloudImage:
    image = CloudImage(
        name="noble",
        digest="sha256:1234",
        disk=Path("/cloud-images/disk.qcow2"),
        virtual_bytes=3 << 30,
        driver=DriverImage(repository="mcr.microsoft.com/gpu", version="580.1", sha="2026"),
    )
    return replace(image, **changes)


def ignore_event(_: ProgressEvent) -> None:
    return
