"""One script queries NVIDIA's own driver and the stand-in; both show provisioning the same facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.lab.node_request import NodeRequest
from suites.e2e.gpu.driver_facts import FACTS, FACTS_WHERE_IT_OPENS, driver_facts
from suites.e2e.real_driver.conftest import OPEN_S

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image
    from suites.e2e.real_driver.conftest import NodeWithDriver

pytestmark = pytest.mark.real_driver


def test_driver_that_opens_no_gpu_looks_like_the_stand_in(
    boot_node: BootNode, real_driver_image: Image, a100: GpuModel
) -> None:
    node = boot_node(NodeRequest(name="facts", image=real_driver_image, command=None, gpus=[a100]))

    assert driver_facts(node.guest, timeout_s=2 * OPEN_S) == FACTS


def test_driver_that_opens_the_gpu_makes_the_folder_of_mig_capabilities(
    node_with_driver: NodeWithDriver, a100: GpuModel
) -> None:
    node = node_with_driver(a100)

    assert driver_facts(node.guest, timeout_s=2 * OPEN_S) == FACTS_WHERE_IT_OPENS
