"""Nodes with the vendor's provisioner, or with the changed copy that `--provisioner` names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.api import NodeRequest
from harness.provisioner.gpu_node import NAME
from harness.provisioner.yaml_file import read_provisioner
from suites.e2e.vendor_provisioner.staged import DECLARATION, staged

if TYPE_CHECKING:
    from harness.api import GpuModel, Image, Lab


@pytest.fixture
def staged_node(lab: Lab, node_image: Image) -> NodeRequest:
    """Return the request of a node with the driver that the vendor's image pipeline staged."""
    assert node_image.driver is not None
    return NodeRequest(
        name="node",
        image=node_image,
        provisioner=(
            read_provisioner(DECLARATION) if lab.provisioner.name == NAME else lab.provisioner
        ),
        skip_cloud_init=True,
        derive=staged(node_image.driver.version),
    )


@pytest.fixture
def gpu_node(staged_node: NodeRequest, h100: GpuModel) -> NodeRequest:
    """Return the request of the same node with a GPU."""
    return replace(staged_node, gpus=[h100])
