"""A node's boot chooses the baked module, a full build, or no driver at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.cloudinit import GuestFile
from harness.evidence import RECORD_PATH
from harness.lab.node_request import NodeRequest

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image

ENSURE_EVENTS = (
    "AKS.CSE.ensureGPUDrivers",
    "AKS.CSE.ensureGPUDrivers.configGPUDrivers",
    "AKS.CSE.configGPUDrivers.installGPUDriverImage",
    "AKS.CSE.configGPUDrivers.waitForNvidiaModprobe",
    "AKS.CSE.configGPUDrivers.waitForNvidiaSmi",
)


@pytest.mark.slow
def test_baked_kernel_takes_the_fast_path(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """On the kernel of the bake, nothing is compiled, and the baked module drives the GPU."""
    kernel = baked_image.newest_kernel.version
    node = boot_node(NodeRequest(name="fast-path", image=baked_image, gpus=[h100]))

    evidence = node.evidence()

    assert baked_image.driver is not None
    expect.cloud_init_clean(evidence)
    expect.provisioned(evidence)
    expect.decided(evidence, action="install-skip-build", reason="ok")
    expect.kernel_running(evidence, kernel)
    expect.module_built_before_boot(evidence, kernel)
    expect.module_built_for(evidence, kernel, version=baked_image.driver.version)
    expect.gpu_bound(evidence, device="2330")
    expect.driver_installed(evidence)
    expect.image_absent(evidence, baked_image.driver.reference)
    expect.prebake_line(
        evidence, event="managed_gpu", marker_present="true", driver_kind_match="true"
    )
    expect.events_recorded(evidence, *ENSURE_EVENTS)
    assert node.gpu().trace.bar_accesses(0), "The module never read the GPU's registers."
    runtime = node.guest.output_of("containerd", "config", "dump")
    if "enable_cdi" in runtime:
        assert "enable_cdi = true" in runtime, "containerd could hand out CDI devices itself."
        assert 'default_runtime_name = "runc"' in runtime
    else:
        assert 'default_runtime_name = "nvidia"' in runtime


@pytest.mark.slow
def test_another_kernel_gets_a_full_build(
    boot_node: BootNode, baked_image: Image, a100: GpuModel
) -> None:
    """A node whose kernel is not the kernel of the bake builds the module itself."""
    other = baked_image.other_kernel
    node = boot_node(NodeRequest(name="full-build", image=baked_image, kernel=other, gpus=[a100]))

    evidence = node.evidence()

    assert baked_image.driver is not None
    expect.cloud_init_clean(evidence)
    expect.provisioned(evidence)
    expect.decided(evidence, action="install", reason="kernel")
    expect.kernel_running(evidence, other.version)
    expect.module_built_since_boot(evidence, other.version)
    expect.module_built_for(evidence, other.version, version=baked_image.driver.version)
    expect.gpu_bound(evidence, device="20b0")
    expect.events_recorded(evidence, *ENSURE_EVENTS)


@pytest.mark.slow
def test_node_without_a_gpu_loses_the_baked_driver(
    boot_node: BootNode, baked_image: Image
) -> None:
    """A node without a GPU keeps no part of the baked driver."""
    node = boot_node(NodeRequest(name="no-gpu", image=baked_image))

    evidence = node.evidence()

    expect.cloud_init_clean(evidence)
    expect.provisioned(evidence)
    expect.decided(evidence, action="teardown", reason="opted_out")
    expect.no_gpu(evidence)
    expect.no_driver_artefact(evidence)
    expect.no_record(evidence)
    expect.prebake_line(
        evidence,
        event="teardown",
        gpu_node="false",
        status="cleaned",
        marker_after="false",
        dkms_after="false",
        modprobe_after="false",
    )
    expect.events_recorded(evidence, "AKS.CSE.cleanUpGPUDrivers")


@pytest.mark.nightly
def test_corrupt_record_causes_a_full_build(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """A record that is not text does not fail the run. A new build replaces the baked driver."""
    garbage = GuestFile(path=RECORD_PATH, content=b"kernel=\x00\xff\n'\"; rm -rf /\ndriver")
    node = boot_node(
        NodeRequest(name="corrupt-record", image=baked_image, gpus=[h100], files=[garbage])
    )

    evidence = node.evidence()

    assert baked_image.driver is not None
    expect.provisioned(evidence)
    expect.decided(evidence, action="teardown-install", reason="corrupt")
    expect.module_built_since_boot(evidence, baked_image.newest_kernel.version)
    expect.gpu_bound(evidence, device="2330")


@pytest.mark.nightly
def test_absent_driver_image_is_pulled_from_the_registry_of_the_cloud_and_renamed(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """If containerd lacks the driver image, the node pulls it from the registry of its cloud."""
    assert baked_image.driver is not None
    reference = baked_image.driver.reference
    node = boot_node(
        NodeRequest(
            name="pull",
            image=baked_image,
            gpus=[h100],
            config={"mcr_repository_base": "localhost:5000/"},
            before=[
                ["systemctl", "start", "docker-registry"],
                ["ctr", "-n", "k8s.io", "images", "rm", reference],
            ],
        )
    )

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.decided(evidence, action="install-skip-build", reason="ok")
    expect.events_recorded(evidence, "AKS.CSE.configGPUDrivers.pullGPUDriverImage")
    expect.gpu_bound(evidence, device="2330")
    expect.image_absent(evidence, reference)
    expect.image_absent(evidence, reference.replace("mcr.microsoft.com", "localhost:5000"))
