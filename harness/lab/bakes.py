"""Bakes images: boots an image on a machine without a GPU, and runs a provisioner's bake command."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.errors import BadInputError, HarnessError
from harness.evidence import Evidence
from harness.image.formats.qcow2 import flatten
from harness.lab.cloud_images import AGENT_FILES, CloudImageBoot, render_clean
from harness.lab.node_request import NodeRequest
from harness.machine.guest_time import deadline_of_maker
from harness.progress import ProgressEvent, Stage
from harness.provisioner import BAKE, RUNNER_PATH
from harness.provisioning.command import LocalRunner
from harness.settings import MachineStart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.image import CloudImage, DriverImage, Image, Kernel
    from harness.lab import Lab
    from harness.lab.node import Node
    from harness.provisioner import Provisioner
    from harness.provisioning.wait import Deadline

#: Seconds under KVM that a bake may take in addition to the provisioner's own time limit.
_BAKE_KVM_S = 60.0
_BAKE_CLOUD_IMAGE_KVM_S = 180.0
_CLEAN_KVM_S = 30.0
_FLATTEN_S = 900.0
_EVIDENCE = "evidence"


def bake_node(
    lab: Lab, name: str | None = None, *, provisioner: Provisioner | None = None
) -> Image:
    """Return the node image `name` with the driver baked in.

    A machine without a GPU runs the bake. `provisioner`, which is by default the lab's
    provisioner, declares the bake command.

    The machine boots the second newest kernel, but the bake is for the newest kernel. So tests
    detect a provisioner that records the running kernel instead of the target kernel. The evidence
    of the bake is published with the image. `bake_evidence` reads that evidence.

    Raises BadInputError if the provisioner declares no bake, and HarnessError if the bake fails.
    """
    provisioner = provisioner or lab.provisioner
    provisioner.command(BAKE)
    parent = lab.node_image(name)
    return lab.store.ensure_derived(
        parent,
        _parts(provisioner),
        functools.partial(_make_node, lab, provisioner, parent),
        deadline=_deadline(lab, provisioner, _BAKE_KVM_S),
        listener=lab.listener,
    )


def bake_cloud_image(
    lab: Lab,
    image: CloudImage,
    *,
    driver: DriverImage | None = None,
    provisioner: Provisioner | None = None,
) -> CloudImage:
    """Return a cloud image with the driver baked in.

    A machine without a GPU runs the bake. `driver` is by default the driver that the image's entry
    names. The machine boots an overlay of the image by firmware, and cloud-init runs the
    provisioner. Then the files that the first boot and the harness wrote are removed, so that the
    next boot is a first boot again. The result is one complete file. `bake_evidence` reads the
    evidence.

    Raises BadInputError if no driver is named, and HarnessError if the bake fails.
    """
    provisioner = provisioner or lab.provisioner
    provisioner.command(BAKE)
    image = replace(image, driver=driver or image.driver)
    if image.driver is None:
        raise BadInputError(
            f"No driver is named for a bake of the image '{image.name}'; set the key 'driver' in the "
            "image's entry, or pass --driver to the command.",
            source=str(image.disk),
        )
    return lab.derived.bake(
        image,
        {
            **_parts(provisioner),
            "driver": image.driver.reference,
            "clean": clean_script(provisioner),
        },
        functools.partial(_make_cloud_image, lab, provisioner, image),
        deadline=_deadline(lab, provisioner, _BAKE_CLOUD_IMAGE_KVM_S),
        listener=lab.listener,
    )


def bake_evidence(baked: Image | CloudImage) -> Evidence:
    """Return the evidence of the bake that made `baked`."""
    return Evidence(baked.disk.parent / _EVIDENCE)


def _parts(provisioner: Provisioner) -> Mapping[str, str]:
    """Return everything that determines a baked image, except the parent image."""
    return {
        "payload": provisioner.digest,
        "config": repr(sorted(provisioner.bake_values.items())),
    }


def _deadline(lab: Lab, provisioner: Provisioner, extra_kvm_s: float) -> Deadline:
    return deadline_of_maker((provisioner.timeout_s + extra_kvm_s) * lab.patience)


def clean_script(provisioner: Provisioner) -> str:
    """Return the script that removes the files of the first boot from a baked cloud image."""
    folders = tuple(f"{folder}/" for folder in provisioner.folders)
    files = (file.path for file in provisioner.files if not file.path.startswith(folders))
    return render_clean(
        [RUNNER_PATH, *provisioner.configuration_paths, *provisioner.outcome_paths, *files],
        provisioner.folders,
        agent_files=AGENT_FILES,
    )


def _make_node(lab: Lab, provisioner: Provisioner, parent: Image, disk: Path) -> None:
    request = NodeRequest(
        name="bake",
        image=parent,
        kernel=_builder_kernel(parent),
        provisioner=provisioner,
        command=BAKE,
        config=provisioner.bake_values,
    )
    with lab.boot(request, disk=disk, start=MachineStart.COLD) as node:
        _wait_until_baked(lab, node, disk.parent, _bake_reporter(lab, parent.name))
        node.power_off()


def _builder_kernel(parent: Image) -> Kernel:
    """Return the second newest kernel, or the only kernel of a cloud image."""
    return parent.newest_kernel if len(parent.kernels) == 1 else parent.other_kernel


def _make_cloud_image(lab: Lab, provisioner: Provisioner, image: CloudImage, disk: Path) -> None:
    boot = CloudImageBoot()
    request = NodeRequest(
        name="bake",
        image=image,
        provisioner=provisioner,
        command=BAKE,
        config=provisioner.bake_values,
        cloud_image_boot=boot,
    )
    report = _bake_reporter(lab, image.name)
    overlay = disk.with_name("overlay.qcow2")
    lab.store.create_overlay(image.disk, overlay, size_gib=boot.size_gib(image))
    report("booting it with its own boot loader")
    with lab.boot(request, disk=overlay) as node:
        _wait_until_baked(lab, node, disk.parent, report)
        report("removing the files of its first boot")
        limit_s = node.machine.deadline(_CLEAN_KVM_S).remaining_s()
        node.guest.output_of("sh", "-c", clean_script(provisioner), timeout_s=limit_s)
        node.power_off()
    report("writing its disk")
    flatten(overlay, disk, runner=LocalRunner(), timeout_s=_FLATTEN_S)
    overlay.unlink()


def _bake_reporter(lab: Lab, name: str) -> Callable[[str], None]:
    def report(line: str) -> None:
        lab.listener(ProgressEvent(subject=name, stage=Stage.BUILD, message=f"bake: {line}"))

    return report


def _wait_until_baked(lab: Lab, node: Node, folder: Path, report: Callable[[str], None]) -> None:
    """Wait for a bake, and store its evidence in `folder`. Raises HarnessError if the bake fails."""
    try:
        node.wait_until_provisioned(report)
    except HarnessError as error:
        error.evidence = lab.try_save_evidence(node, "bake")
        raise
    evidence = node.collect(folder / _EVIDENCE)
    if evidence.exit_code != 0:
        kept = lab.save_evidence(evidence, "bake")
        raise HarnessError(
            f"The bake of '{node.request.image.name}' ended with "
            f"{evidence.provisioner.named(evidence.exit_code)}: {_why(evidence)}.",
            evidence=kept,
        )


def _why(evidence: Evidence) -> str:
    outcome = evidence.outcome
    if outcome is None or outcome.error is None:
        return "the provisioner reported no reason, so read the output of cloud-init"
    return outcome.error


def write_standalone(image: Image | CloudImage, to: Path) -> Path:
    """Write an image to the path `to`, as one complete qcow2 file.

    Raises BadInputError if the path exists, or if the image can't be written there.
    """
    if to.exists():
        raise BadInputError("The file exists already.", source=str(to))
    beside = to.with_name(f".{to.name}.part")
    try:
        beside.touch(mode=0o600, exist_ok=True)
        flatten(image.disk, beside, runner=LocalRunner(), timeout_s=_FLATTEN_S)
        beside.rename(to)
    except OSError as error:
        raise BadInputError(
            f"The image could not be written to this path ({error.strerror}).", source=str(to)
        ) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return to
