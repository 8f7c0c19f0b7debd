"""Fixtures: a node whose run is interrupted, and the same node after one complete run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.lab.node_request import NodeRequest
from suites.e2e.interruption.whole_run import state_of
from suites.e2e.runtime.refresh_unit import FILES, INSTALL

if TYPE_CHECKING:
    from harness.api import GpuModel, Image
    from harness.evidence.state import NodeState
    from harness.lab import Lab


@pytest.fixture(scope="session")
def usual_request(baked_image: Image, h100: GpuModel) -> NodeRequest:
    """Return the request of a node that takes the fast path and has all services.

    A run after the removal of the driver image pulls the image again, from the node's registry.
    """
    return NodeRequest(
        name="interrupted",
        image=baked_image,
        gpus=[h100],
        skip_cloud_init=True,
        config={"enable_managed_gpu": True, "mcr_repository_base": "localhost:5000/"},
        files=FILES,
        before=[["systemctl", "start", "docker-registry"], INSTALL],
    )


@pytest.fixture(scope="session")
def whole_run(lab: Lab, usual_request: NodeRequest) -> NodeState:
    """Return the state of the node after one run without an interruption."""
    with lab.boot(usual_request) as node:
        node.wait_until_provisioned()
        expect.provisioned(node.evidence())
        return state_of(node)
