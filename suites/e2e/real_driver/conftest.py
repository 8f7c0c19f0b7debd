"""Nodes with NVIDIA's own driver: one with a GPU of each model, and one whose GPUs it opens."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from harness.fixtures.machines import OPENED_GPU_IMAGES, REAL_DRIVER_IMAGE
from harness.lab.node import NodeRequest
from harness.plugin.evidence_sources import NodeEvidenceSource
from harness.plugin.report import kept_on_failure
from harness.plugin.select import requirements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.gpu.catalogue import Catalogue
    from harness.image import Image
    from harness.lab import Lab
    from harness.lab.node import Node
    from harness.settings import Settings

#: Option and word: with it the emulated GPUs of a run have a system processor.
EMULATION = ("--gpu-emulation", "gsp")

#: The GPUs of the node that tests share, in the order of their slots.
OPENED_MODELS = ("a100-sxm4-40gb", "h100-sxm5-80gb")

#: The module is 55 MiB, and an emulated processor links it for seconds.
LOAD_S = 120.0
#: To open a GPU for the first time, or to close it.
OPEN_S = 180.0


@pytest.fixture(scope="session")
def real_driver_image(pytestconfig: pytest.Config, lab: Lab, settings: Settings) -> Image:
    """Return the node image whose driver opens no GPU; skipped where GPUs are to be opened."""
    option, word = EMULATION
    if pytestconfig.getoption(option, None) == word:
        pytest.skip(f"The driver of '{REAL_DRIVER_IMAGE}' is for GPUs without {option}={word}.")
    with requirements(settings):
        return lab.node_image(REAL_DRIVER_IMAGE)


@pytest.fixture(scope="module")
def node_of_every_model(
    pytestconfig: pytest.Config,
    lab: Lab,
    settings: Settings,
    real_driver_image: Image,
    gpu_catalogue: Catalogue,
) -> Iterator[Node]:
    """Boot a node with a GPU of each model, its driver loaded; for tests that only read.

    No provisioning runs on it: what is seen is what the driver does by itself.
    """
    request = NodeRequest(
        name="every-model",
        image=real_driver_image,
        command=None,
        gpus=tuple(gpu_catalogue.models.values()),
        spare_slots=0,
    )
    with contextlib.ExitStack() as stack:
        with requirements(settings):
            node = stack.enter_context(lab.boot(request))
        stack.enter_context(kept_on_failure(pytestconfig, NodeEvidenceSource(node)))
        node.wait_until_provisioned()
        node.guest.output_of("nvidia-modprobe", "-u", "-c0", timeout_s=LOAD_S)
        # With -u the option is about nvidia-uvm's nodes; who asks NVML first gets the GPUs'.
        node.guest.output_of("nvidia-smi")
        node.evidence()
        yield node


@pytest.fixture(scope="session")
def opened_gpu_image(
    pytestconfig: pytest.Config, lab: Lab, settings: Settings, image_name: str
) -> Image:
    """Return the image of the run whose driver opens GPUs; without one the test is skipped."""
    option, word = EMULATION
    if image_name not in OPENED_GPU_IMAGES or pytestconfig.getoption(option, None) != word:
        chosen = " or ".join(f"--image={name}" for name in sorted(OPENED_GPU_IMAGES))
        pytest.skip(f"NVIDIA's driver opens a GPU only with {option}={word} and {chosen}.")
    with requirements(settings):
        return lab.node_image(image_name)


@pytest.fixture(scope="module")
def opened_node(
    pytestconfig: pytest.Config,
    lab: Lab,
    settings: Settings,
    opened_gpu_image: Image,
    gpu_catalogue: Catalogue,
) -> Iterator[Node]:
    """Boot a node with an A100 and an H100 that the driver has opened; for tests that change nothing."""
    gpus = tuple(gpu_catalogue.get(name) for name in OPENED_MODELS)
    request = NodeRequest(
        name="opened", image=opened_gpu_image, command=None, gpus=gpus, spare_slots=0
    )
    with contextlib.ExitStack() as stack:
        with requirements(settings):
            node = stack.enter_context(lab.boot(request))
        stack.enter_context(kept_on_failure(pytestconfig, NodeEvidenceSource(node)))
        node.wait_until_provisioned()
        open_gpus(node)
        node.evidence()
        yield node


def open_gpus(node: Node) -> None:
    """Load the driver and let it open each GPU once; it keeps them open, so later questions are quick."""
    node.guest.output_of("nvidia-modprobe", "-u", "-c0", timeout_s=LOAD_S)
    node.guest.output_of("nvidia-smi", "-pm", "1", timeout_s=OPEN_S)
