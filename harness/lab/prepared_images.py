"""Makes node images from cloud images: boots an image once, and adds the agent and the stand-ins.

The result is used like a built image. Its kernels, their command lines, systemd, cloud-init and
network come from the cloud image, and its next boot is a first boot.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.errors import HarnessError
from harness.image.catalogue import Recipe, read_recipe
from harness.image.formats import oci
from harness.image.formats.qcow2 import flatten
from harness.image.store import Prepared
from harness.lab.cloud_images import CloudImageBoot, agent_commands, render_clean
from harness.lab.running_machines import host_evidence_kept
from harness.machine.guest_time import deadline_of_maker
from harness.progress import ProgressEvent, Stage
from harness.provisioner.gpu_node import CONFIG_PATH, OUTCOME_PATH, PAYLOAD_FOLDER
from harness.provisioning.command import LocalRunner
from harness.settings import SHIPPED_IMAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from harness.image import CloudImage, CloudImageKernel, DriverImage, Image
    from harness.image.store import ImageStore
    from harness.lab.machine import LabMachine
    from harness.machine.channels.guest import Guest
    from harness.progress import ProgressListener
    from harness.provisioning.wait import Deadline
    from harness.settings import Settings

VERSION = 1
"""Increase this number if a change of the code changes the node image of a cloud image."""

_PREPARE_KVM_S = 300.0
_FIRST_BOOT_KVM_S = 150.0
_STAND_INS_KVM_S = 120.0
_CLEAN_KVM_S = 30.0
_POWER_OFF_KVM_S = 30.0
_FLATTEN_S = 900.0

#: The folder of the services' files, in the folder of the shipped images.
_SERVICES = "stand-ins/services/root"
#: The folders of the scripts that make the stand-in driver's container image.
_DRIVER_FOLDERS = ("stand-ins/driver", "driver-image")
#: The recipe that names the stand-in driver.
_DRIVER_RECIPE = "debian-12.yaml"

_ARCHIVE = "/run/harness-stand-ins.tar"
_WORKSHOP = "run/harness-stand-ins"
#: Unpacks the stand-ins, but keeps the image's own files: an image with a kubelet needs no
#: stand-in for the kubelet.
UNPACK = 'tar --extract --skip-old-files --file="$1" --directory="$2" && rm "$1"'
MISSING = "missing: "
#: Makes the driver's container image if it is missing, and if the cloud image has the tools to
#: make it.
MAKE_DRIVER = f"""\
set -e
if [ -e /usr/lib/gpu-node/driver-image.tar ]; then
    echo "the image has a driver image"
    exit 0
fi
for tool in containerd ctr docker-registry dkms gcc make busybox python3; do
    command -v "$tool" >/dev/null || missing="${{missing-}}${{missing+, }}$tool"
done
if [ -n "${{missing-}}" ]; then
    echo "{MISSING}$missing"
    exit 0
fi
# Stopped, since only one process may use containerd's storage at a time.
systemctl stop containerd.service
sh /{_WORKSHOP}/stand-ins/driver/payload.sh
sh /{_WORKSHOP}/driver-image/build.sh
"""
_SERIAL = "console=ttyS0"
#: No provisioner has run, so these paths do not exist. The paths stay in the script because the
#: script's text is part of every image's key.
_CLEAN = render_clean([CONFIG_PATH, OUTCOME_PATH], [PAYLOAD_FOLDER])


class CloudImageLab(Protocol):
    """The parts of the lab that are needed to make a node image."""

    @property
    def settings(self) -> Settings: ...

    @property
    def store(self) -> ImageStore: ...

    @property
    def listener(self) -> ProgressListener: ...

    @property
    def patience(self) -> float: ...

    def cloud_image_kernels(self, image: CloudImage) -> tuple[CloudImageKernel, ...]: ...

    def boot_cloud_image(
        self, image: CloudImage, boot: CloudImageBoot, *, name: str, disk: Path
    ) -> AbstractContextManager[LabMachine]: ...


def prepare_node_image(lab: CloudImageLab, image: CloudImage) -> Image:
    """Return the node image of a cloud image. Make the node image if the cache has none.

    The node image boots the newest kernel of the cloud image's boot menu, without firmware. Raises
    HarnessError if no kernel can be read from the disk, or if the image's first boot fails.
    """
    kernels = lab.cloud_image_kernels(image)
    parts = {
        "version": str(VERSION),
        "cloud_image": image.digest,
        "driver": "" if image.driver is None else image.driver.reference,
        "stand_ins": hashlib.sha256(stand_in_archive()).hexdigest(),
        "scripts": repr((UNPACK, MAKE_DRIVER, _CLEAN)),
        "agent": hashlib.sha256(repr(agent_commands()).encode()).hexdigest(),
    }
    return lab.store.ensure_prepared(
        image.name,
        parts,
        functools.partial(_make, lab, image, kernels),
        deadline=deadline_of_maker(_PREPARE_KVM_S * lab.patience),
        listener=lab.listener,
    )


def _make(
    lab: CloudImageLab, image: CloudImage, kernels: tuple[CloudImageKernel, ...], disk: Path
) -> Prepared:
    boot = CloudImageBoot(kernel=kernels[-1])
    overlay = disk.with_name("overlay.qcow2")
    lab.store.create_overlay(image.disk, overlay, size_gib=boot.size_gib(image))
    _report(lab, image, "booting it once, to add the guest agent and the stand-ins")
    kept = lab.settings.evidence_folder / "node-images" / image.name
    with (
        lab.boot_cloud_image(image, boot, name="prepare", disk=overlay) as machine,
        host_evidence_kept(machine, kept),
    ):
        driver = _change(lab, image, machine)
    _report(lab, image, "writing its disk")
    flatten(overlay, disk, runner=LocalRunner(), timeout_s=_FLATTEN_S)
    overlay.unlink()
    return Prepared(kernels=[with_console(kernel) for kernel in kernels], driver=driver)


def _change(lab: CloudImageLab, image: CloudImage, machine: LabMachine) -> DriverImage | None:
    """Add the stand-ins to a machine that has the agent, and power the machine off. Return the driver."""
    guest = machine.guest
    wait_until_booted(guest, image.name, machine.deadline(_FIRST_BOOT_KVM_S))
    deadline = machine.deadline(_STAND_INS_KVM_S)
    machine.agent.write_bytes(_ARCHIVE, stand_in_archive(), deadline)
    guest.output_of("sh", "-c", UNPACK, "unpack", _ARCHIVE, "/", timeout_s=deadline.remaining_s())
    driver = image.driver or add_driver(
        guest,
        image.name,
        timeout_s=deadline.remaining_s(),
        report=functools.partial(_report, lab, image),
    )
    _report(lab, image, "removing the files of its first boot")
    limit_s = machine.deadline(_CLEAN_KVM_S).remaining_s()
    guest.output_of("sh", "-c", _CLEAN, timeout_s=limit_s)
    guest.power_off()
    machine.vm.wait_for_power_off(machine.deadline(_POWER_OFF_KVM_S))
    return driver


def wait_until_booted(guest: Guest, name: str, deadline: Deadline) -> None:
    """Wait until cloud-init has finished. Raises HarnessError if cloud-init had errors."""
    result = guest.wait_for_cloud_init_result(deadline)
    if result.errors:
        raise HarnessError(
            f"cloud-init of the image '{name}' failed at its first boot: "
            f"{'; '.join(result.errors)}."
        )


def add_driver(
    guest: Guest, name: str, *, timeout_s: float, report: Callable[[str], None]
) -> DriverImage | None:
    """Make the stand-in driver's image in the guest, and return it.

    If the guest lacks tools for making the image, the function reports these tools and returns None.
    Raises HarnessError if making the image fails.
    """
    driver = _stand_in_driver()
    variables = {
        "GPU_DRIVER_REPOSITORY": driver.repository,
        "GPU_DRIVER_VERSION": driver.version,
        "GPU_IMAGE_SHA": driver.sha,
    }
    result = guest.run("sh", "-c", MAKE_DRIVER, timeout_s=timeout_s, env=variables)
    if not result.ok:
        raise HarnessError(
            f"The stand-in driver could not be added to the image '{name}'.\n{result.render()}"
        )
    if result.stdout.startswith(MISSING):
        report(
            f"leaving out the stand-in driver, which needs {result.stdout[len(MISSING) :].strip()}"
        )
        return None
    return driver


def stand_in_archive() -> bytes:
    """Return a tar archive of the stand-ins, and of the tools that make the driver's container image."""
    entries = [
        *_entries(SHIPPED_IMAGES / _SERVICES, ""),
        *(
            entry
            for folder in _DRIVER_FOLDERS
            for entry in _entries(SHIPPED_IMAGES / folder, f"{_WORKSHOP}/{folder}/")
        ),
        oci.entry_of(Path(oci.__file__), f"{_WORKSHOP}/oci.py"),
    ]
    return oci.tar_of(entries)


def _entries(folder: Path, prefix: str) -> Iterator[oci.Entry]:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or path.is_file():
            yield oci.entry_of(path, f"{prefix}{path.relative_to(folder)}")


def _stand_in_driver() -> DriverImage:
    recipe = read_recipe(SHIPPED_IMAGES / _DRIVER_RECIPE)
    if not isinstance(recipe, Recipe) or recipe.file.driver is None:
        raise HarnessError(f"The recipe '{SHIPPED_IMAGES / _DRIVER_RECIPE}' names no driver.")
    return recipe.file.driver


def with_console(kernel: CloudImageKernel) -> CloudImageKernel:
    """Return the kernel with a serial console, on which the harness watches the boot."""
    if any(word.startswith(_SERIAL) for word in kernel.command_line):
        return kernel
    return replace(kernel, command_line=(*kernel.command_line, _SERIAL))


def _report(lab: CloudImageLab, image: CloudImage, message: str) -> None:
    lab.listener(ProgressEvent(subject=image.name, stage=Stage.BUILD, message=message))
