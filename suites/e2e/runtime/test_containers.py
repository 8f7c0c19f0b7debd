"""A container has the GPU if it asked for it, and in no other way."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.api import GuestFile
from harness.plugin.select import requirements
from suites.e2e.promises import promise
from suites.e2e.runtime.podman import podman_files, run_by_podman
from suites.e2e.runtime.pods import (
    ASK,
    MAKE_AND_OPEN,
    ROOT_FILE_SYSTEM,
    RUNTIME,
    RUNTIME_PATH,
    TOOLKIT,
    TOOLKIT_CONFIG,
    run_pod,
    runtime_of,
)
from suites.e2e.runtime.refresh_unit import FILES, INSTALL

if TYPE_CHECKING:
    from harness.api import Image
    from harness.settings import Settings
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_toolkit.py"


@promise(section="10", unit=UNIT, each_change=("CDI",))
@pytest.mark.parametrize(
    "cdi_enabled", [pytest.param(True, id="CDI"), pytest.param(False, id="nvidia runtime")]
)
def test_container_has_the_gpu_exactly_if_it_asked(
    start_node: StartNode,
    baked_image: Image,
    cdi_enabled: bool,  # a parameter
) -> None:
    """It opens the device and reads the driver's version; without a request it can do neither.

    The driver image's runtime is a stand-in that starts containers as runc does, so one that reads
    NVIDIA's configuration and requests takes its place.
    """
    node = start_node(
        "pods",
        config={
            "enable_managed_gpu": True,
            "cdi_enabled": cdi_enabled,
            "retry_budget_s": 240,
        },
        files=[*FILES, RUNTIME, GuestFile(path=TOOLKIT_CONFIG, content=TOOLKIT.encode())],
        before=[INSTALL, ROOT_FILE_SYSTEM],
    )
    evidence = node.evidence(files=[TOOLKIT_CONFIG])
    expect.provisioned(evidence)
    toolkit = evidence.file(TOOLKIT_CONFIG) or ""
    mode = "cdi" if cdi_enabled else "auto"
    assert toolkit.startswith(TOOLKIT.replace("legacy", mode))
    runtime = runtime_of(node)
    assert ("nvidia.cdi.k8s.io/" in toolkit) == (cdi_enabled and not runtime.is_native)
    node.guest.output_of("cp", RUNTIME_PATH, "/usr/bin/nvidia-container-runtime")

    asked = run_pod(node, ASK, gpu="0")
    silent = run_pod(node, ASK, gpu=None)
    sly = run_pod(node, MAKE_AND_OPEN, gpu=None)
    absent = run_pod(node, ASK, gpu="7")

    driver = baked_image.driver
    assert driver is not None
    assert asked.ok, asked.render()
    assert asked.stdout.strip() == driver.version
    assert not silent.ok, silent.render()
    assert "/dev/nvidia0" in silent.stderr, silent.render()
    assert not sly.ok, sly.render()
    assert "open /run/gpu: Operation not permitted" in sly.stderr, sly.render()
    assert not absent.ok, absent.render()
    if not runtime.is_native:
        assert runtime.program == "/usr/bin/nvidia-container-runtime"


@promise(section="10", unit=UNIT)
@pytest.mark.pin_image(reason="podman is Debian 12's on each image")
def test_podman_gives_the_gpu_by_its_cdi_name(
    start_node: StartNode, baked_image: Image, settings: Settings
) -> None:
    """Another runtime than containerd reads the same CDI spec, and needs nothing else of the node."""
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
