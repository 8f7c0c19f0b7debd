"""Provisioning with NVIDIA's own driver, from the fast path to its removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.lab.node import NodeRequest
from suites.e2e.real_driver.prebaked import check_fast_path_and_teardown, check_other_kernel

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.gpu.catalogue import Catalogue
    from harness.image import Image

pytestmark = pytest.mark.real_driver


def test_prebaked_driver_drives_the_gpu_and_is_torn_down(
    boot_node: BootNode, real_driver_image: Image, a100: GpuModel
) -> None:
    check_fast_path_and_teardown(boot_node, real_driver_image, a100)


def test_kernel_mismatch_makes_the_driver_absent(
    boot_node: BootNode, real_driver_image: Image, a100: GpuModel
) -> None:
    check_other_kernel(boot_node, real_driver_image, a100)


def test_gpu_newer_than_the_driver_is_reported_as_that(
    boot_node: BootNode, real_driver_image: Image, gpu_catalogue: Catalogue
) -> None:
    """The node fails with the driver's code and its reason; nothing is built and tried again."""
    blackwell = gpu_catalogue.get("rtx-pro-6000-server-96gb")
    node = boot_node(NodeRequest(name="too-new", image=real_driver_image, gpus=[blackwell]))

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=84)
    expect.decided(evidence, action="install-skip-build", reason="ok")
    expect.step_failed(evidence, "install-driver")
    expect.gpus_refused(evidence, "2bb5")
    expect.gpus_driven(evidence)
    expect.module_built_before_boot(evidence, real_driver_image.newest_kernel.version)
    expect.log_line(
        evidence, "The NVIDIA driver 535.309.01 does not support the GPU 0000:02:00.0 (10de:2bb5)"
    )
    expect.cloud_init_reports_failure(evidence)


def test_gpu_that_leaves_the_bus_is_lost_to_nvidia_smi(
    boot_node: BootNode, real_driver_image: Image, a100: GpuModel, h100: GpuModel
) -> None:
    """One of two is gone: its loss is reported, with nvidia-smi's own exit code."""
    node = boot_node(
        NodeRequest(name="lost", image=real_driver_image, gpus=[a100, h100], command=None)
    )
    assert len(node.guest.output_of("nvidia-smi", "-L").splitlines()) == 2

    node.gpu("gpu0").fall_off_bus()

    lost = node.guest.run("nvidia-smi")
    assert lost.exit_code == 15
    assert "GPU is lost.  Reboot the system to recover this GPU" in lost.stdout
    left = node.guest.output_of(
        "nvidia-smi", "--id=1", "--query-gpu=name", "--format=csv,noheader"
    )
    assert left == h100.title
