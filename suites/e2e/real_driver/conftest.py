"""A node with NVIDIA's own driver and one GPU of each model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

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

#: The module is 55 MiB, and an emulated processor links it for seconds.
LOAD_S = 120.0


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
