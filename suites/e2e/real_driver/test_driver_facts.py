"""NVIDIA's own driver shows provisioning what the stand-in shows it: the same script asks both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.lab.node import NodeRequest
from suites.e2e.gpu.driver_facts import FACTS, driver_facts
from suites.e2e.real_driver.conftest import OPEN_S

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image

pytestmark = pytest.mark.real_driver


@pytest.fixture(params=["real_driver_image", "opened_gpu_image"])
def real_image(request: pytest.FixtureRequest) -> Image:
    """Return an image whose driver only identifies GPUs, and one whose driver opens them."""
    image: Image = request.getfixturevalue(request.param)
    return image


def test_real_driver_is_seen_as_the_stand_in_is(
    boot_node: BootNode, real_image: Image, a100: GpuModel
) -> None:
    node = boot_node(NodeRequest(name="facts", image=real_image, command=None, gpus=[a100]))

    facts = driver_facts(node.guest, timeout_s=2 * OPEN_S)

    assert facts == FACTS
