"""The facts about a machine that reports show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.lab.cloud_images import CloudImageBoot, CloudImageSource
from harness.lab.machine_bundle import read_bundle
from harness.lab.machine_facts import machine_facts
from harness.machine.description.spec import Accelerator, Firmware
from suites.unit.gpu.models import a_model
from suites.unit.lab.builders import a_cloud_image, a_lab_machine, an_image
from suites.unit.lab.bundle_folder import a_bundle
from suites.unit.lab.stage import a_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from suites.unit.lab.stage import Stage


def test_facts_of_a_booted_machine_have_its_image_and_kernel_and_gpus_and_driver(
    stage: Stage,
) -> None:
    other = replace(a_model(), name="a100")
    with stage.machine(
        gpus=[a_model(), other, a_model()], slots=4, accelerator=Accelerator.KVM
    ) as machine:
        assert machine_facts(machine) == {
            "image": "debian-12",
            "kernel": "6.1.0-56",
            "gpu": "h100, a100",
            "nvidia_driver": "580.1",
            "accelerator": "kvm",
            "start": "cold",
        }


def test_machine_facts_show_none_for_a_missing_gpu_and_a_missing_driver(tmp_path: Path) -> None:
    source = a_lab_machine(tmp_path).description.source
    source = replace(source, image=replace(an_image(), driver=None))  # type: ignore[type-var]

    facts = machine_facts(a_lab_machine(tmp_path, source=source))

    assert (facts["gpu"], facts["nvidia_driver"]) == ("none", "none")


def test_cloud_image_boots_the_kernel_of_its_boot_loader(tmp_path: Path) -> None:
    source = CloudImageSource(image=a_cloud_image(), boot=CloudImageBoot())

    machine = a_lab_machine(tmp_path, source=source)

    assert isinstance(machine.spec.kernel, Firmware)
    facts = machine_facts(machine)
    assert (facts["image"], facts["kernel"]) == ("noble", "of the boot loader")
    assert facts["nvidia_driver"] == "580.1"


def test_start_of_a_cloned_or_resumed_machine_is_recorded_as_clone(tmp_path: Path) -> None:
    for number, is_resumed in enumerate((False, True)):
        folder = tmp_path / str(number)
        bundle = read_bundle(a_bundle(folder / "checkpoint"))
        how = {"bundle": bundle} if is_resumed else {"checkpoint": a_checkpoint()}

        facts = machine_facts(a_lab_machine(folder, **how))

        assert (facts["start"], facts["image"]) == ("clone", "debian-12"), is_resumed
