"""A container of podman has the GPU only if the container requested the GPU."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.plugin.select import requirements
from suites.e2e.promises import promise
from suites.e2e.runtime.podman import podman_files, run_by_podman
from suites.e2e.runtime.pods import ASK, ROOT_FILE_SYSTEM
from suites.e2e.runtime.refresh_unit import FILES, INSTALL

if TYPE_CHECKING:
    from harness.api import Image
    from harness.settings import Settings
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_toolkit.py"


@promise(section="10", unit=UNIT)
@pytest.mark.pin_image(reason="podman is Debian 12's on each image")
def test_podman_container_gets_the_gpu_by_its_cdi_name(
    start_node: StartNode, baked_image: Image, settings: Settings
) -> None:
    """Podman reads the node's CDI spec and needs no other file of the node's configuration."""
    with requirements(settings):
        files = podman_files(settings.cache, logging.getLogger(__name__).info)
    node = start_node(
        "podman",
        config={"retry_budget_s": 240},
        files=[*FILES, *files],
        before=[INSTALL, ROOT_FILE_SYSTEM],
    )
    expect.provisioned(node.result())

    asked = run_by_podman(node, ASK, "--device", "nvidia.com/gpu=0")
    silent = run_by_podman(node, ASK)
    absent = run_by_podman(node, ASK, "--device", "nvidia.com/gpu=7")

    assert baked_image.driver is not None
    assert asked.ok, asked.render()
    assert asked.stdout.strip() == baked_image.driver.version
    assert not silent.ok, silent.render()
    assert "/dev/nvidia0" in silent.stderr, silent.render()
    assert not absent.ok, absent.render()
    assert "nvidia.com/gpu=7" in absent.stderr, absent.render()
