"""Describes the parts of a machine for reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.lab.cloud_images import CloudImageSource
from harness.lab.saved_states import BuiltImageSource
from harness.machine.description.spec import DirectKernel
from harness.settings import MachineStart

if TYPE_CHECKING:
    from harness.lab.machine import LabMachine


def machine_facts(machine: LabMachine) -> dict[str, str]:
    """Return facts about a machine by name: image, kernel, GPUs, NVIDIA driver, accelerator, start mode.

    The NVIDIA driver is the driver of the image.
    """
    source, kernel = machine.description.source, machine.spec.kernel
    image = source.image if isinstance(source, (BuiltImageSource, CloudImageSource)) else None
    driver = None if image is None else image.driver
    gpus = [gpu.title for gpu in machine.gpus.provided]
    return {
        "image": source.name,
        "kernel": kernel.version if isinstance(kernel, DirectKernel) else "of the boot loader",
        "gpu": ", ".join(dict.fromkeys(gpus)) or "none",
        "nvidia_driver": "none" if driver is None else driver.version,
        "accelerator": machine.spec.accelerator.accel,
        "start": (
            MachineStart.CLONE if machine.description.is_continued else MachineStart.COLD
        ).value,
    }
