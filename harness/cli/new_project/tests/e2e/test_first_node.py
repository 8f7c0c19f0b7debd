"""scripts/prepare_node.sh on a machine with GPUs, and on one without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness import expect
from harness.cloudinit import GuestFile
from harness.lab.node import NodeRequest

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image

SCRIPT = GuestFile(
    path="/opt/node/prepare_node.sh",
    content=(Path(__file__).parents[2] / "scripts/prepare_node.sh").read_bytes(),
    mode=0o755,
)


def test_node_with_two_gpus_is_prepared(
    boot_node: BootNode, node_image: Image, h100: GpuModel
) -> None:
    """`boot_node` returns when cloud-init has finished; the machine ends with the test."""
    request = NodeRequest(
        name="two-gpus", image=node_image, command=None, files=[SCRIPT], gpus=[h100, h100]
    )
    node = boot_node(request)

    node.guest.run(SCRIPT.path).check("The script")

    assert node.guest.read_text("/etc/gpu-node/settings.env") == "GPU_COUNT=2\n"
    evidence = node.evidence()
    # 2330 is the PCI device id of the H100; `harness gpu ls` lists those of all models.
    expect.gpus_on_bus(evidence, "2330", "2330")
    expect.cloud_init_clean(evidence)


def test_node_without_a_gpu_is_refused(boot_node: BootNode, node_image: Image) -> None:
    request = NodeRequest(name="no-gpu", image=node_image, command=None, files=[SCRIPT])
    node = boot_node(request)

    assert node.guest.run(SCRIPT.path).exit_code == 3

    expect.no_gpu(node.evidence())
