"""A bake builds the driver for the kernel that nodes will boot, on a machine without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.lab.bakes import bake_evidence

if TYPE_CHECKING:
    from harness.image import Image

# A bake takes minutes, and no other test of a further distribution that CI runs needs one.
pytestmark = pytest.mark.slow


def test_bake_builds_for_the_newest_kernel_and_keeps_the_driver_image(baked_image: Image) -> None:
    """A bake on the older kernel builds for the newest kernel with headers, and records that kernel."""
    evidence = bake_evidence(baked_image)
    newest, builder = baked_image.newest_kernel.version, baked_image.other_kernel.version
    driver = baked_image.driver
    assert driver is not None

    expect.cloud_init_clean(evidence)
    expect.provisioned(evidence)
    expect.kernel_running(evidence, builder)
    expect.record_names(
        evidence, kernel=newest, driver_version=driver.version, driver_kind="cuda", arch="x86_64"
    )
    expect.module_built_for(evidence, newest, version=driver.version)
    expect.no_module_for(evidence, builder)
    expect.driver_installed(evidence)
    expect.image_present(evidence, driver.reference)
    expect.log_line(evidence, f"nvidia-cuda-driver-prebaked={driver.tag} (kernel {newest})")


def test_bake_loads_no_module_and_makes_no_device_node(baked_image: Image) -> None:
    """The machine of the bake has no GPU."""
    evidence = bake_evidence(baked_image)

    expect.no_gpu(evidence)
    expect.no_module_loaded(evidence)
