"""Nodes that get a driver that was compiled for their kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from harness.lab.precompiled import modules_for, precompiled_archive
from harness.lab.registry import driver_archive
from harness.plugin.select import requirements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.image import Image, Kernel
    from harness.lab import Lab
    from harness.lab.node import Node
    from harness.lab.registry import Registry
    from suites.e2e.conftest import NodeFields, StartNode

NAME = "registry.test/gpu/driver"


class Publish(Protocol):
    """Publishes the precompiled driver image for a kernel, and returns the image's name."""

    def __call__(self, kernel: Kernel) -> str: ...


class StartPrecompiled(Protocol):
    """Starts a node that should get its driver from the registry."""

    def __call__(
        self,
        name: str,
        config: Mapping[str, object] | None = None,
        *,
        image: Image | None = None,
        kernel: Kernel | None = None,
        command: str = "boot",
    ) -> Node: ...


@pytest.fixture
def os_tag(image_name: str) -> str:
    """Return the system's name in image tags, from a table that does not depend on provisioning's code."""
    return {"debian-12": "debian12", "debian-13": "debian13"}[image_name]


def reference_of(image: Image, kernel: Kernel, os_tag: str) -> str:
    """Return the name of the precompiled driver image for a node image and a kernel."""
    assert image.driver is not None
    # A tag can't have the '+' of a kernel of Debian 13.
    return f"{NAME}:{image.driver.version}-{kernel.version.replace('+', '_')}-{os_tag}"


@pytest.fixture
def publish(
    lab: Lab,
    node_image: Image,
    baked_image: Image,
    registry: Registry,
    os_tag: str,
) -> Publish:
    """Return a function that pushes the precompiled driver image for a kernel into the registry."""

    def push(kernel: Kernel) -> str:
        reference = reference_of(baked_image, kernel, os_tag)
        with requirements(lab.settings):
            modules = modules_for(lab, baked_image, kernel)
            archive = precompiled_archive(driver_archive(lab, node_image), kernel.version, modules)
        registry.push(archive, reference)
        return reference

    return push


@pytest.fixture
def start_precompiled(start_node: StartNode, registry: Registry) -> StartPrecompiled:
    """Return a function that starts a node whose configuration names the image in the registry."""

    def start(
        name: str,
        config: Mapping[str, object] | None = None,
        *,
        image: Image | None = None,
        kernel: Kernel | None = None,
        command: str = "boot",
    ) -> Node:
        fields: NodeFields = {
            "command": command,
            "config": {"precompiled_image": NAME, **(config or {})},
            "files": registry.guest_files,
            "host_ports": registry.host_ports,
        }
        if image is not None:
            fields["image"] = image
        if kernel is not None:
            fields["kernel"] = kernel
        return start_node(name, **fields)

    return start
