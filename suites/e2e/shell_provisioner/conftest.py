"""The example provisioner in the place of the harness's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioner.gpu_node import NAME
from harness.provisioner.yaml_file import read_provisioner

if TYPE_CHECKING:
    from harness.lab import Lab
    from harness.provisioner import Provisioner


@pytest.fixture(scope="session")
def provisioner() -> Provisioner:
    """Return the example, which bakes the image."""
    return read_provisioner(Path(__file__).with_name("provisioner.yaml"))


@pytest.fixture
def provisioner_of_test(lab: Lab, provisioner: Provisioner) -> Provisioner:
    """Return the one that nodes boot with: the example, or a changed copy by `--provisioner`."""
    return provisioner if lab.provisioner.name == NAME else lab.provisioner
