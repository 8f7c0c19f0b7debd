"""The emulated host of `suites/e2e/passthrough`, and an image with a driver for its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.fixtures.machines import settings_of
from harness.lab.bakes import bake_node
from harness.plugin.select import requirements
from suites.e2e.passthrough.conftest import (
    NODE_IMAGE,
    gpu_host,  # noqa: F401 - fixtures
    host_of_nodes,  # noqa: F401
    nested_node_image,  # noqa: F401
    node_host,  # noqa: F401
)

if TYPE_CHECKING:
    from harness.image import Image
    from harness.lab import Lab
    from harness.provisioner import Provisioner


@pytest.fixture(scope="session")
def nested_baked_image(lab: Lab, pytestconfig: pytest.Config, provisioner: Provisioner) -> Image:
    """Return the image of the host's nodes with the baked driver."""
    with requirements(settings_of(pytestconfig)):
        return bake_node(lab, NODE_IMAGE, provisioner=provisioner)
