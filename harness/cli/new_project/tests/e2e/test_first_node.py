"""Tests scripts/prepare_node.sh on a machine with GPUs, and on a machine without GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import expect
from harness.api import NodeRequest

if TYPE_CHECKING:
    from harness.api import BootNode, GpuModel, Image


def test_node_with_two_gpus_is_prepared(
    boot_node: BootNode, node_image: Image, h100: GpuModel
) -> None:
    """`boot_node` returns when cloud-init has run the script; the machine ends with the test."""
    node = boot_node(NodeRequest(name="two-gpus", image=node_image, gpus=[h100, h100]))

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.gpus_on_bus(evidence, h100, h100)
    assert evidence.file("/etc/gpu-node/settings.env") == "GPU_COUNT=2\n"


def test_node_without_a_gpu_is_refused(boot_node: BootNode, node_image: Image) -> None:
    node = boot_node(NodeRequest(name="no-gpu", image=node_image))

    evidence = node.evidence()

    # provisioner.yaml gives the exit code 3 the name 'no-gpu'.
    expect.provisioned(evidence, exit_code="no-gpu")
    expect.no_gpu(evidence)
    assert evidence.file("/etc/gpu-node/settings.env") is None
