"""Nodes with NVIDIA's own driver: with a GPU of each model, or with GPUs that the driver opens."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import pytest

from harness.bench.gpu_open import with_driver_loaded
from harness.fixtures.machines import OPENED_GPU_IMAGES, REAL_DRIVER_IMAGE
from harness.lab.node_request import NodeRequest
from harness.plugin.evidence_sources import NodeEvidenceSource
from harness.plugin.report import kept_on_failure
from harness.plugin.select import requirements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.gpu.catalogue import Catalogue
    from harness.image import Image
    from harness.lab import Lab
    from harness.lab.node import Node
    from harness.lab.saved_states import SavedState
    from harness.settings import Settings

#: The option, and the value with which the emulated GPUs of a run have a GPU system processor.
EMULATION = ("--gpu-emulation", "gsp")

#: The module has 55 MiB; an emulated processor takes seconds to link it.
LOAD_S = 120.0
#: The time limit for opening a GPU for the first time, or closing it.
OPEN_S = 180.0


@pytest.fixture(scope="session")
def real_driver_image(pytestconfig: pytest.Config, lab: Lab, settings: Settings) -> Image:
    """Return the image whose driver opens no GPU; skip the test if the run's GPUs can be opened."""
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
    """Boot a node with a GPU of each model and load its driver; for tests that change nothing.

    No provisioning runs on the node, so the tests see what the driver does by itself.
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
        # With -u, `-c0` makes only nvidia-uvm's nodes; the first NVML query makes the GPUs' nodes.
        node.guest.output_of("nvidia-smi")
        node.evidence()
        yield node


@pytest.fixture(scope="session")
def opened_gpu_image(
    pytestconfig: pytest.Config, lab: Lab, settings: Settings, image_name: str
) -> Image:
    """Return the image of the run, whose driver must open GPUs; otherwise skip the test."""
    option, word = EMULATION
    if image_name not in OPENED_GPU_IMAGES or pytestconfig.getoption(option, None) != word:
        chosen = " or ".join(f"--image={name}" for name in sorted(OPENED_GPU_IMAGES))
        pytest.skip(f"NVIDIA's driver opens a GPU only with {option}={word} and {chosen}.")
    with requirements(settings):
        return lab.node_image(image_name)


def request_with_driver_loaded(
    name: str, image: Image, gpus: Sequence[GpuModel], loader: GpuModel
) -> NodeRequest:
    """Return the request of a node that continues after the driver was loaded for the GPU `loader`."""

    def loaded(state: SavedState) -> SavedState:
        return with_driver_loaded(state, loader)

    return NodeRequest(
        name=name,
        image=image,
        command=None,
        gpus=gpus,
        spare_slots=0,
        skip_cloud_init=True,
        derive=loaded,
    )


class NodeWithDriver(Protocol):
    """Starts a node for the running test; its driver is loaded before these GPUs are plugged."""

    def __call__(self, *gpus: GpuModel) -> Node: ...


@pytest.fixture
def node_with_driver(
    boot_node: BootNode, opened_gpu_image: Image, a100: GpuModel
) -> NodeWithDriver:
    """Return a function that starts a node with a loaded driver and these GPUs, all still closed."""

    def start(*gpus: GpuModel) -> Node:
        return boot_node(request_with_driver_loaded("loaded", opened_gpu_image, gpus, a100))

    return start


@pytest.fixture(scope="module")
def opened_node(
    pytestconfig: pytest.Config,
    lab: Lab,
    opened_gpu_image: Image,
    a100: GpuModel,
    h100: GpuModel,
) -> Iterator[Node]:
    """Start a node whose driver has opened an A100 and an H100; for tests that change nothing."""
    opened = request_with_driver_loaded("opened", opened_gpu_image, (a100, h100), a100)
    with contextlib.ExitStack() as stack:
        with requirements(lab.settings):
            node = stack.enter_context(lab.boot(opened))
        stack.enter_context(kept_on_failure(pytestconfig, NodeEvidenceSource(node)))
        node.wait_until_provisioned()
        open_gpus(node)
        yield node


def open_gpus(node: Node) -> None:
    """Load the driver if needed, and let the driver open each GPU and keep the GPU open."""
    node.guest.output_of("nvidia-modprobe", "-u", "-c0", timeout_s=LOAD_S)
    node.guest.output_of("nvidia-smi", "-pm", "1", timeout_s=OPEN_S)
