"""The fixture that gives the sample's tests a node made of stateful fakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.host.shell.shell_provisioner.node import Node

if TYPE_CHECKING:
    from harness.shell.testing import Shell


@pytest.fixture
def node(shell: Shell) -> Node:
    """Return a node without a driver; a test may change the node before its first call."""
    return Node(shell)
