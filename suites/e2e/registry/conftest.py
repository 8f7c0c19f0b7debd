"""Nodes that want a driver image which containerd lacks, and a registry that has the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from harness.evidence import RECORD_PATH
from harness.lab.registry import driver_archive
from harness.plugin.select import requirements
from suites.e2e.any_provisioner import is_own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.image import Image
    from harness.lab import Lab
    from harness.lab.node import Node
    from harness.lab.registry import Registry
    from harness.provisioner import Provisioner
    from harness.provisioning.command import Argv
    from harness.settings import Settings
    from suites.e2e.conftest import StartNode

#: The example provisioner's names for the configuration keys of these tests.
_EXAMPLE_KEYS = {"gpu_image_sha": "DRIVER_SHA"}
#: The second half of a tag that containerd lacks. The node already has this image under another
#: tag, so a pull only fetches the manifest.
OTHER_SHA = "20990101000000"


@pytest.fixture
def other_reference(baked_image: Image) -> str:
    """Return the name of the driver image that the registry has and containerd lacks."""
    assert baked_image.driver is not None
    return baked_image.driver.reference.replace(baked_image.driver.sha, OTHER_SHA)


@pytest.fixture
def driver_registry(
    lab: Lab, node_image: Image, registry: Registry, other_reference: str, settings: Settings
) -> Registry:
    """Return a registry that has the driver image of the node, under two tags."""
    assert node_image.driver is not None
    with requirements(settings):
        archive = driver_archive(lab, node_image)
    for reference in (node_image.driver.reference, other_reference):
        registry.push(archive, reference)
    return registry


class StartPulling(Protocol):
    """Starts a node that uses the test's registry in place of Microsoft's."""

    def __call__(self, name: str, *, before: Sequence[Argv] = (), **config: object) -> Node: ...


@pytest.fixture
def start_pulling(
    start_node: StartNode, driver_registry: Registry, provisioner: Provisioner
) -> StartPulling:
    """Return a function that starts a node on the kernel of the bake; the node wants the other tag.

    With a foreign provisioner, the node has no record, since that provisioner may need no driver
    image for a baked driver.
    """
    keys = {} if is_own(provisioner) else _EXAMPLE_KEYS
    no_record = [] if is_own(provisioner) else [["rm", RECORD_PATH]]

    def start(name: str, *, before: Sequence[Argv] = (), **config: object) -> Node:
        asked = {"gpu_image_sha": OTHER_SHA, **config}
        return start_node(
            name,
            config={keys.get(key, key): value for key, value in asked.items()},
            before=[*before, *no_record],
            files=driver_registry.guest_files,
            host_ports=driver_registry.host_ports,
        )

    return start
