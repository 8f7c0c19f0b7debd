"""Provisioning with NVIDIA's own driver, from the fast path to the driver's removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.lab.node_request import NodeRequest
from harness.provisioner.gpu_node import METADATA_CACHE
from suites.e2e.real_driver.conftest import OPEN_S
from suites.e2e.real_driver.decisions import SKIP_DRIVER, decision_of

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.gpu.catalogue import Catalogue
    from harness.image import Image

pytestmark = pytest.mark.real_driver

PROVISION_LOG = "/var/log/azure/cluster-provision.log"


def check_fast_path_and_teardown(boot_node: BootNode, image: Image, a100: GpuModel) -> None:
    """Expect that the fast path compiles nothing, and that an opt-out removes the whole driver."""
    assert image.driver is not None
    version = image.driver.version
    kernel = image.newest_kernel.version
    node = boot_node(NodeRequest(name="real-driver", image=image, gpus=[a100]))

    driven = node.evidence()

    expect.cloud_init_clean(driven)
    expect.provisioned(driven)
    expect.decided(driven, action="install-skip-build", reason="ok")
    expect.record_names(driven, kernel=kernel, driver_version=version, driver_kind="cuda")
    expect.module_built_for(driven, kernel, version=version)
    expect.module_built_before_boot(driven, kernel)
    expect.driver_installed(driven)
    expect.gpu_bound(driven, device=a100)
    expect.driver_names_gpus(driven, a100.title)
    expect.gpus_refused(driven)
    assert {"nvidia", "nvidia_uvm"} <= set(driven.loaded_modules)
    assert node.gpu().trace.bar_accesses(0), "The driver never read the GPU's registers."
    listed = node.guest.output_of("nvidia-smi", "-L", timeout_s=OPEN_S)
    assert listed.startswith(f"GPU 0: {a100.title} (UUID: GPU-")

    node.guest.write_text(METADATA_CACHE, SKIP_DRIVER)
    node.provision("boot").check("Provisioning of a node that has opted out")

    stripped = node.evidence()
    expect.gpus_on_bus(stripped, a100)
    expect.gpus_driven(stripped)
    expect.no_driver_artefact(stripped)
    expect.no_record(stripped)
    assert decision_of(stripped) == ("teardown", "opted_out")
    assert (
        "AKS_GPU_PREBAKE event=teardown gpu_node=true status=cleaned dkms_before=true "
        "module_before=true module_after=false marker_after=false dkms_after=false "
        "modprobe_after=false"
    ) in (stripped.file(PROVISION_LOG) or "")


def check_other_kernel(boot_node: BootNode, image: Image, a100: GpuModel) -> None:
    """Expect no driver for the GPU on the kernel for which the image has no module."""
    other = image.other_kernel
    node = boot_node(
        NodeRequest(
            name="mismatch",
            image=image,
            kernel=other,
            gpus=[a100],
            command=None,
            skip_cloud_init=True,
        )
    )

    probe = node.guest.run("nvidia-modprobe", "-u", "-c0")
    query = node.guest.run("nvidia-smi")
    planned = node.provision("plan").check("plan").stdout

    evidence = node.evidence()
    expect.kernel_running(evidence, other.version)
    expect.no_module_for(evidence, other.version)
    expect.no_module_loaded(evidence)
    expect.gpus_on_bus(evidence, a100)
    expect.gpus_driven(evidence)
    assert (probe.exit_code, query.exit_code) == (1, 9)
    assert "couldn't communicate with the NVIDIA driver" in query.stdout
    assert "install-driver" in planned
    assert decision_of(evidence) == ("install", "kernel")


def test_prebaked_driver_drives_the_gpu_and_is_torn_down(
    boot_node: BootNode, real_driver_image: Image, a100: GpuModel
) -> None:
    check_fast_path_and_teardown(boot_node, real_driver_image, a100)


def test_driver_is_absent_on_a_kernel_that_it_was_not_built_for(
    boot_node: BootNode, real_driver_image: Image, a100: GpuModel
) -> None:
    check_other_kernel(boot_node, real_driver_image, a100)


def test_prebaked_driver_that_opens_the_gpu_drives_the_gpu_and_is_torn_down(
    boot_node: BootNode, opened_gpu_image: Image, a100: GpuModel
) -> None:
    check_fast_path_and_teardown(boot_node, opened_gpu_image, a100)


def test_opened_gpu_has_no_driver_on_a_kernel_without_a_built_module(
    boot_node: BootNode, opened_gpu_image: Image, a100: GpuModel
) -> None:
    check_other_kernel(boot_node, opened_gpu_image, a100)


def test_gpu_newer_than_the_driver_is_reported_as_too_new(
    boot_node: BootNode, real_driver_image: Image, gpu_catalogue: Catalogue
) -> None:
    """The node fails with the exit code and the message of the driver; no build is tried."""
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


def test_nvidia_smi_reports_a_gpu_that_leaves_the_bus_as_lost(
    boot_node: BootNode, real_driver_image: Image, a100: GpuModel, h100: GpuModel
) -> None:
    """One of two GPUs is lost; nvidia-smi reports the loss with a separate exit code."""
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
