"""Fixtures that replace the harness's own provisioner by the example provisioner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.lab.bakes import bake_node
from harness.plugin.select import requirements
from harness.provisioner.gpu_node import NAME
from harness.provisioner.yaml_file import read_provisioner

if TYPE_CHECKING:
    from harness.image import Image
    from harness.lab import Lab
    from harness.provisioner import Provisioner
    from harness.settings import Settings


@pytest.fixture(scope="session")
def provisioner() -> Provisioner:
    """Return the example provisioner, which bakes the image."""
    return read_provisioner(Path(__file__).with_name("provisioner.yaml"))


@pytest.fixture(scope="session")
def baked_image(lab: Lab, settings: Settings, image_name: str, provisioner: Provisioner) -> Image:
    """Return the image that the example's bake command made.

    The plugin's own session fixture may already contain the image that another provisioner baked.
    """
    with requirements(settings):
        return bake_node(lab, image_name, provisioner=provisioner)


@pytest.fixture
def provisioner_of_test(lab: Lab, provisioner: Provisioner) -> Provisioner:
    """Return the provisioner of the nodes: the example, or a changed copy from `--provisioner`."""
    return provisioner if lab.provisioner.name == NAME else lab.provisioner
