"""Tests the example provisioner, a project's own script, on nodes, as our own provisioning is tested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.lab.node_request import NodeRequest

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image

pytestmark = [
    pytest.mark.pin_image(reason="the example is about a project's own provisioner"),
    pytest.mark.nightly,
]

#: Longer than any boot in these tests: a node that waited so long would never count as
#: provisioned.
NEVER_S = "3600"
SLOW_S = "8"


def version_of(image: Image) -> str:
    assert image.driver is not None
    return image.driver.version


def test_baked_node_compiles_nothing_and_waits_for_its_device_plugin(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """Without the plugin no pod gets a GPU; the node does not wait for monitoring."""
    kernel = baked_image.newest_kernel.version
    node = boot_node(
        NodeRequest(
            name="baked",
            image=baked_image,
            gpus=[h100],
            tags={"EnableManagedGPUExperience": "true"},
            stand_ins={
                "nvidia-device-plugin": {"START_DELAY_S": SLOW_S},
                "nvidia-dcgm": {"START_DELAY_S": NEVER_S},
            },
        )
    )

    evidence = node.evidence()

    expect.cloud_init_clean(evidence)
    expect.provisioned(evidence)
    expect.decided(evidence, action="install-skip-build", reason="ok")
    expect.module_built_before_boot(evidence, kernel)
    expect.gpu_bound(evidence, device="2330")
    expect.driver_installed(evidence)
    expect.record_names(
        evidence,
        kernel=kernel, driver_version=version_of(baked_image), driver_kind="cuda-lts",
        arch="x86_64",
    )  # fmt: skip
    expect.unit_state(evidence, "nvidia-device-plugin.service", active="active")
    expect.unit_state(evidence, "nvidia-dcgm.service", active="activating")
    expect.events_recorded(
        evidence,
        "GPU.fetchTags", "GPU.startBakedDriver", "GPU.installDriver", "GPU.restartContainerd",
        "GPU.validateDriver", "GPU.startManagedServices", "GPU.startKubelet",
    )  # fmt: skip


def test_driver_is_built_for_a_running_kernel_that_is_not_the_newest(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """The module is built for the running kernel; the newest kernel already has a module."""
    other = baked_image.other_kernel
    node = boot_node(NodeRequest(name="other", image=baked_image, kernel=other, gpus=[h100]))

    evidence = node.evidence()

    expect.decided(evidence, action="install", reason="kernel")
    expect.provisioned(evidence)
    expect.module_built_since_boot(evidence, other.version)
    expect.module_built_for(evidence, other.version, version=version_of(baked_image))
    expect.gpu_bound(evidence, device="2330")
    expect.driver_installed(evidence)
    expect.record_names(evidence, kernel=other.version)
    expect.events_recorded(evidence, "GPU.pullImage", "GPU.buildDriver")


def test_node_without_a_gpu_loses_the_driver(boot_node: BootNode, baked_image: Image) -> None:
    node = boot_node(NodeRequest(name="no-gpu", image=baked_image))

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.decided(evidence, action="teardown", reason="opted_out")
    expect.no_driver_artefact(evidence)
    expect.no_record(evidence)
    expect.events_recorded(evidence, "GPU.teardown")


def test_device_plugin_that_never_starts_has_its_own_exit_code(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    node = boot_node(
        NodeRequest(
            name="no-plugin",
            image=baked_image,
            gpus=[h100],
            tags={"EnableManagedGPUExperience": "true"},
            stand_ins={"nvidia-device-plugin": {"START_RESULT": "fail"}},
        )
    )

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=86)
    expect.cloud_init_reports_failure(evidence)
