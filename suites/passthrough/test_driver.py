"""Provisioning installs the driver of a GPU that is passed through to a node, and removes it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.api import NodeRequest, unit_commands
from suites.passthrough.conftest import ANY
from suites.passthrough.memory_health import QUERIES, parse_memory_health

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.api import BootNode, Image, Node
    from suites.passthrough.conftest import Step
    from suites.passthrough.nights import GpuFacts

MIG = "mig-partition.service"


@pytest.fixture
def provisioned(
    boot_node: BootNode,
    driver_image: Image,
    step: Step,
    describe_gpu: Callable[[Node], GpuFacts],
) -> Node:
    """Return a provisioned node whose driver was installed before its first boot."""
    with step("provision"):
        node = boot_node(
            NodeRequest(name="driven", image=driver_image, gpus=[ANY], skip_cloud_init=True)
        )
    describe_gpu(node)
    return node


def test_provisioned_driver_drives_the_gpu(provisioned: Node) -> None:
    """Nothing is compiled, the module is bound, and nvidia-smi lists the GPU."""
    evidence = provisioned.evidence()
    (gpu,) = provisioned.machine.gpus.provided

    expect.provisioned(evidence)
    expect.decided(evidence, "install-skip-build", reason="ok")
    expect.gpus_driven(evidence, gpu.pci)
    listed = provisioned.guest.output_of("nvidia-smi", "-L").splitlines()
    assert len(listed) == 1, f"One GPU was expected, but nvidia-smi lists {listed}."
    assert listed[0].startswith("GPU 0: NVIDIA"), listed[0]


def test_memory_of_the_gpu_is_healthy(provisioned: Node) -> None:
    """The driver counts no uncorrected errors and no pages or rows to be replaced."""
    answers = {}
    for query in QUERIES:
        result = provisioned.guest.run(
            "nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"
        )
        if "not a valid field" in result.stdout + result.stderr or "--format" in result.stdout:
            pytest.skip(f"This nvidia-smi does not know '{query}': it is the stand-in's.")
        answers[query] = result.check("nvidia-smi").stdout

    health = parse_memory_health(answers)

    assert health.faults == [], f"A healthy memory was expected, but: {'; '.join(health.faults)}."


def test_gpu_with_mig_is_partitioned(boot_node: BootNode, driver_image: Image) -> None:
    """Provisioning switches MIG on; a GPU without MIG skips the test."""
    node = boot_node(
        NodeRequest(
            name="mig",
            image=driver_image,
            gpus=[ANY],
            skip_cloud_init=True,
            config={"gpu_instance_profile": "MIG3g"},
        )
    )
    mode = node.guest.output_of(
        "nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"
    )
    if mode == "[N/A]":
        pytest.skip("This GPU has no MIG.")

    evidence = node.evidence(commands=unit_commands(MIG))

    expect.provisioned(evidence)
    assert mode == "Enabled", f"MIG was expected to be enabled, but nvidia-smi says '{mode}'."
    expect.unit_enablement(evidence, MIG, "enabled")


@pytest.mark.slow
def test_driver_is_built_for_a_kernel_without_a_module(
    boot_node: BootNode, driver_image: Image, step: Step
) -> None:
    """The record is for another kernel, so the node builds a driver that drives the GPU."""
    other = driver_image.other_kernel
    with step("build for another kernel"):
        node = boot_node(
            NodeRequest(
                name="mismatch", image=driver_image, kernel=other, gpus=[ANY], skip_cloud_init=True
            )
        )

    evidence = node.evidence()

    (gpu,) = node.machine.gpus.provided
    expect.decided(evidence, "install", reason="kernel")
    expect.provisioned(evidence)
    assert driver_image.driver is not None
    expect.module_built_for(evidence, other.version, version=driver_image.driver.version)
    expect.gpus_driven(evidence, gpu.pci)


def test_teardown_leaves_the_gpu_without_a_driver(
    boot_node: BootNode, driver_image: Image, step: Step
) -> None:
    """A node that opted out keeps its GPU and no part of the driver."""
    node = boot_node(
        NodeRequest(
            name="opted-out",
            image=driver_image,
            gpus=[ANY],
            skip_cloud_init=True,
            tags={"SkipGpuDriverInstall": "true"},
            command=None,
        )
    )
    with step("teardown"):
        node.provision("boot").check("Provisioning of a node that has opted out")

    evidence = node.evidence()

    (gpu,) = node.machine.gpus.provided
    expect.decided(evidence, "teardown", reason="opted_out")
    expect.gpus_on_bus(evidence, gpu.pci)
    expect.gpus_driven(evidence)
    expect.no_driver_artefact(evidence)
    expect.no_record(evidence)
