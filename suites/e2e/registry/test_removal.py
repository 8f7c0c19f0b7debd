"""A boot removes the driver image after the installation, without waiting for the removal.

Section 5 of the contract, step 9: `images rm`, never with `--sync`; its failure is ignored.
"""

from __future__ import annotations

import json
import tarfile
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.cloudinit import GuestFile
from harness.lab.registry import driver_archive
from suites.e2e.interruption.interrupt import FAIL, Interruption
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from harness.api import Argv
    from harness.image import Image
    from harness.lab import Lab
    from suites.e2e.conftest import StartNode

pytestmark = promise(
    section="5, step 9", unit="suites/unit/provisioning/test_containerd.py", each_change=True
)

_BLOBS = "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256"
#: containerd collects unnamed content at its start and after many changes; neither happens here.
_LATE_COLLECTION = b"""version = 2
[plugins."io.containerd.gc.v1.scheduler"]
startup_delay = "2h"
mutation_threshold = 0
"""
#: The lease of an imported image keeps its content for a day, even if the image is removed.
_REMOVE_LEASES: Argv = [
    *("sh", "-euc"),
    "ctr -n k8s.io leases ls -q | xargs -r ctr -n k8s.io leases rm",
]


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


def test_node_is_ready_before_the_content_of_the_removed_image_is_deleted(
    lab: Lab, start_node: StartNode, node_image: Image, baked_image: Image
) -> None:
    """Containerd removes only the name at once; it garbage-collects the content much later."""
    assert baked_image.driver is not None
    layer = f"{_BLOBS}/{layer_of(driver_archive(lab, node_image))}"
    config = GuestFile(path="/etc/containerd/config.toml", content=_LATE_COLLECTION)
    node = start_node("late", files=[config], before=[_REMOVE_LEASES])

    evidence = node.evidence(commands={"layer": ["stat", "--format=%s", layer]})

    expect.provisioned(evidence)
    expect.prebake_line(evidence, event="managed_gpu")
    expect.image_absent(evidence, baked_image.driver.reference)
    assert evidence.exit_code_of("layer") == 0, (
        f"The layer '{layer}' was expected to be there when the node was ready, but provisioning "
        "has waited until it was collected."
    )


@pytest.mark.nightly
def test_node_gets_ready_although_the_image_cannot_be_removed(
    start_node: StartNode,
) -> None:
    """An image that is left takes disk space, and has no other effect."""
    fails = Interruption(at="ctr -n k8s.io images rm *", act=FAIL).file
    node = start_node("kept", files=[fails])

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.step_failed(evidence, "remove-driver-image")
