"""Describes a machine that continues from a bundle, or refuses the bundle.

The bundle may come from somebody else. QEMU opens any file that a disk's header or a link names,
and the guest could read and write that file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.errors import BadInputError, HarnessError
from harness.gpu.catalogue import find_model
from harness.image.formats.qcow2 import is_qcow2, why_unusable
from harness.lab.base_images import find_base
from harness.lab.description import DISK, MachineDescription
from harness.lab.machine_bundle import ResumedSource, qemu_version, with_own_variables
from harness.machine.description.spec import Firmware

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab.machine_bundle import MachineBundle
    from harness.settings import Settings


def resumed_machine(
    bundle: MachineBundle,
    settings: Settings,
    folder: Path | None = None,
    *,
    base: Path | None = None,
    kept_until: float | None = None,
) -> MachineDescription:
    """Describe a machine in `folder` that continues, with new GPUs of the same models.

    Without a folder, the description names the bundle's folder, which is enough to check the
    bundle. `base` is the backing file of the machine's disk. Without `base`, the cache must
    contain the base image. Raises BadInputError for a bundle that names files of this host. Raises
    HarnessError if this host lacks the base image, or the machine's version of QEMU or of the
    firmware.
    """
    require_own_files(bundle)
    require_qemu_of(bundle, settings.qemu)
    require_firmware_of(bundle)
    folder = folder or bundle.folder
    if base is None:
        base = find_base(
            bundle.base,
            (settings.image_store, settings.cloud_image_store, settings.derived_store),
        )
    return MachineDescription(
        spec=replace(
            with_own_variables(bundle.spec, folder), disk=folder / DISK, qemu=settings.qemu
        ),
        folder=folder,
        source=ResumedSource(bundle=bundle, disk=base),
        bundle=bundle,
        gpus=[find_model(name, *settings.gpu_models) for name in bundle.gpus],
        kept_until=kept_until,
    )


def require_own_files(bundle: MachineBundle) -> None:
    """Raise BadInputError for a file that is a link, and for a disk that names another file."""
    for path in sorted(bundle.folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            raise BadInputError(
                "A saved machine has plain files only, but this is a link, a folder or a device. The "
                "machine was not resumed; get the bundle again from the host that made it.",
                source=str(path),
            )
    if not bundle.disk.exists():
        raise BadInputError(
            "The disk of the saved machine is missing; get the bundle again from the host that made it.",
            source=str(bundle.disk),
        )
    problem = why_unusable(bundle.disk) if is_qcow2(bundle.disk) else "is not a qcow2 image"
    if problem is not None:
        raise BadInputError(
            f"The disk of the saved machine {problem}. The machine was not resumed; get the bundle again from "
            "the host that made it.",
            source=str(bundle.disk),
        )


def require_firmware_of(bundle: MachineBundle) -> None:
    """Raise HarnessError if the machine ran on another UEFI firmware than this host has.

    Also raises RequirementError if this host has no UEFI firmware.
    """
    kernel = bundle.spec.kernel
    if not isinstance(kernel, Firmware) or kernel.flash is None:
        return
    # The import is inside the function, because few machines have UEFI firmware.
    from harness.machine.uefi_firmware import find_uefi_firmware  # noqa: PLC0415

    found = find_uefi_firmware().code
    if kernel.flash.code != found:
        raise HarnessError(
            f"The machine was saved with the UEFI firmware '{kernel.flash.code}', but this host has "
            f"'{found}'; install the same package in the same version."
        )


def require_qemu_of(bundle: MachineBundle, qemu: str) -> None:
    """Raise HarnessError if `qemu` is not the version that saved the machine."""
    found = qemu_version(qemu)
    if found != bundle.qemu_version:
        raise HarnessError(
            f"The machine was saved by QEMU {bundle.qemu_version}, but '{qemu}' is {found}; name a "
            "QEMU of that version with --qemu."
        )
