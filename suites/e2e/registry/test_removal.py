"""Boot removes the driver image after the installation, and waits for nothing of that.

Section 5 of the contract, step 9: `images rm`, never with `--sync`; a failure of it is ignored.
"""

from __future__ import annotations

import json
import tarfile
from io import BytesIO
from typing import TYPE_CHECKING

from harness import expect
from harness.cloudinit import GuestFile
from harness.lab.node import NodeRequest
from harness.lab.registry import driver_archive

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image
    from harness.lab import Lab

_BLOBS = "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256"
#: What has lost its name is collected at the start of containerd and after many changes; now neither.
_LATE_COLLECTION = b"""version = 2
[plugins."io.containerd.gc.v1.scheduler"]
startup_delay = "2h"
mutation_threshold = 0
"""


def layer_of(archive: bytes) -> str:
    """Return the digest of the first layer of an OCI archive, in hex."""
    with tarfile.open(fileobj=BytesIO(archive)) as tar:

        def read(path: str) -> dict[str, list[dict[str, str]]]:
            opened = tar.extractfile(path)
            assert opened is not None
            return dict(json.loads(opened.read()))

        manifest = read("index.json")["manifests"][0]["digest"]
        layer = read(f"blobs/{manifest.replace(':', '/')}")["layers"][0]["digest"]
    return layer.partition(":")[2]


def test_node_is_ready_before_the_removed_image_is_gone(
    lab: Lab, boot_node: BootNode, node_image: Image, baked_image: Image, h100: GpuModel
) -> None:
    """Only the name goes at once. Here the content is collected much later, and the node is ready."""
    assert baked_image.driver is not None
    layer = f"{_BLOBS}/{layer_of(driver_archive(lab, node_image))}"
    config = GuestFile(path="/etc/containerd/config.toml", content=_LATE_COLLECTION)
    node = boot_node(NodeRequest(name="late", image=baked_image, gpus=[h100], files=[config]))

    evidence = node.evidence(commands={"layer": ["stat", "--format=%s", layer]})

    expect.provisioned(evidence)
    expect.prebake_line(evidence, event="managed_gpu")
    expect.image_absent(evidence, baked_image.driver.reference)
    assert evidence.exit_code_of("layer") == 0, (
        f"The layer '{layer}' was expected to be there when the node was ready, but provisioning "
        "has waited until it was collected."
    )
