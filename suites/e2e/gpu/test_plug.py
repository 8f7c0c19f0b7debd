"""A GPU that is plugged into a running node is seen there, and one that is unplugged is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import expect
from harness.lab.node import NodeRequest

if TYPE_CHECKING:
    from fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image


def test_gpu_is_plugged_and_unplugged_while_node_runs(
    boot_node: BootNode, node_image: Image, h100: GpuModel, a100: GpuModel
) -> None:
    """Two different GPUs come and go without a reboot."""
    node = boot_node(NodeRequest(name="hot-plug", image=node_image, command=None, spare_slots=2))
    expect.no_gpu(node.evidence())

    first = node.hot_plug(h100)
    node.hot_plug(a100)
    node.guest.wait_for_pci("10de:2330")
    node.guest.wait_for_pci("10de:20b0")
    node.hot_unplug(first)

    evidence = node.evidence()
    expect.gpus_on_bus(evidence, "20b0")
