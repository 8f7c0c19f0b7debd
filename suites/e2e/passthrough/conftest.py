"""The host of these tests: a clone of a machine with an IOMMU and the image 'gpu-lab'."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

import pytest

from harness.fixtures.machines import settings_of
from harness.lab.saved_states import SavedState, booted, source_parts
from harness.plugin.select import requirements
from suites.e2e.passthrough import checkout
from suites.e2e.passthrough.nested_suite import prepare_nodes

if TYPE_CHECKING:
    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.image import Image
    from harness.lab import Lab
    from harness.lab.machine import LabMachine

IMAGE = "gpu-lab"
NODE_IMAGE = "debian-12"
#: Ordinary users of the host, and the group whose members may use its GPUs.
USERS = ("ann", "ben")
GROUP = "gpu"
#: A driver of the kernel, in place of NVIDIA's driver. This driver binds to each plugged GPU.
DRIVER = "uio_pci_generic"
_MEMORY_MIB = 3072
_SLOTS = 6
_ARCHIVE_DISK = "/dev/disk/by-id/virtio-seed"
_UNPACK_S = 300.0
_IMPORT_S = 120.0


#: The rules that an administrator installs for the members of a group. Writes to these sysfs files
#: bind and reset PCI functions; a driver's `unbind` file detaches a function from the driver.
_UDEV_RULES = f"""\
SUBSYSTEM=="vfio", GROUP="{GROUP}", MODE="0660"
ACTION=="add", SUBSYSTEM=="pci", ATTR{{class}}=="0x03*", \
RUN+="/bin/sh -c 'cd /sys$devpath; chgrp {GROUP} driver_override reset reset_method; \
chmod g+w driver_override reset reset_method'"
"""
_GRANT = f"""
install -d -m 2770 -g {GROUP} /run/lock/gpu-node-harness
cd /sys/bus/pci
chgrp {GROUP} drivers_probe drivers/*/unbind
chmod g+w drivers_probe drivers/*/unbind
"""


class StartHost(Protocol):
    """Starts a host with this number of GPUs for the running test; the host ends with the test."""

    def __call__(self, count: int, /) -> LabMachine: ...


def prepare_host(machine: LabMachine) -> None:
    """Install this checkout and the users on the host, and load VFIO."""
    guest = machine.guest
    archive = machine.folder / "checkout.tar"
    checkout.write_archive(archive)
    machine.vm.plug_seed(archive)
    machine.agent.wait_for_file(_ARCHIVE_DISK, machine.deadline(10.0))
    guest.output_of("mkdir", checkout.FOLDER)
    guest.output_of(
        *("tar", "--extract", f"--file={_ARCHIVE_DISK}", f"--directory={checkout.FOLDER}"),
        "--no-same-owner",
        timeout_s=_UNPACK_S,
    )
    guest.write_text(
        "/usr/local/lib/python3.11/dist-packages/gpu-node-harness.pth", checkout.python_path()
    )
    guest.write_text("/usr/local/bin/harness", '#!/bin/sh\nexec python3 -m harness.cli "$@"\n')
    guest.output_of("chmod", "755", "/usr/local/bin/harness")
    guest.output_of("groupadd", GROUP)
    for user in USERS:
        guest.output_of("useradd", "--create-home", "--groups", GROUP, user)
    guest.write_text("/etc/udev/rules.d/70-gpu-lab.rules", _UDEV_RULES)
    guest.output_of("udevadm", "control", "--reload")
    # The image is also used for nodes, which start no virtual machines.
    guest.output_of("sh", "-c", "modprobe kvm_amd || modprobe kvm_intel")
    guest.output_of("modprobe", "--all", "vfio-pci", DRIVER)
    guest.output_of("sh", "-euc", f"echo 10de ffffffff >/sys/bus/pci/drivers/{DRIVER}/new_id")
    guest.output_of("sh", "-euc", _GRANT)
    # Compiles the modules without byte code, and brings all modules into the page cache.
    guest.output_of("harness", "--help", timeout_s=_IMPORT_S)
    guest.output_of("python3", "-c", "import harness.gpu.passthrough.pool", timeout_s=_IMPORT_S)


@pytest.fixture(scope="session")
def gpu_host(lab: Lab, pytestconfig: pytest.Config) -> SavedState:
    """Return the saved state of a host without GPUs, but with this checkout and VFIO."""
    with requirements(settings_of(pytestconfig)):
        checkout.require_same_python()
        image = lab.node_image(IMAGE)
    state = booted(image, memory_mib=_MEMORY_MIB, slots=_SLOTS, has_iommu=True)
    parts = {**source_parts(prepare_host), "checkout": checkout.digest()}
    return state.derive("gpu-host", prepare_host, parts)


@pytest.fixture(scope="session")
def nested_node_image(lab: Lab, pytestconfig: pytest.Config) -> Image:
    """Return the image of the nodes that the host starts."""
    with requirements(settings_of(pytestconfig)):
        return lab.node_image(NODE_IMAGE)


@pytest.fixture(scope="session")
def host_of_nodes(gpu_host: SavedState, nested_node_image: Image) -> SavedState:
    """Return the saved state of a host that has booted a node under its own KVM, and saved it."""
    image = nested_node_image
    parts = {**gpu_host.parts, **source_parts(prepare_nodes), "image": image.key}
    return gpu_host.derive("host-of-nodes", functools.partial(prepare_nodes, image=image), parts)


@pytest.fixture
def start_host(clone: CloneState, gpu_host: SavedState, h100: GpuModel) -> StartHost:
    def start(count: int, /) -> LabMachine:
        machine = clone(gpu_host, "host", gpus=[h100] * count)
        machine.wait_for_gpu(h100, count=count)
        return machine

    return start


@pytest.fixture
def node_host(clone: CloneState, host_of_nodes: SavedState, h100: GpuModel) -> LabMachine:
    """Return a host with two GPUs that has already booted and saved a node."""
    machine = clone(host_of_nodes, "host", gpus=[h100, h100])
    machine.wait_for_gpu(h100, count=2)
    return machine
