"""Nodes of the runtime tests with containerd 2 in place of the image's containerd."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

import pytest

from harness.plugin.select import requirements
from suites.e2e.runtime.containerd_2 import ensure_containerd_2, with_containerd_2

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from harness.lab.node import Node
    from harness.settings import Settings
    from suites.e2e.conftest import NodeFields, StartNode


@pytest.fixture
def start_with_containerd_2(
    start_node: StartNode,
    settings: Settings,
    lagging_mirror: None,  # noqa: ARG001 - for its effect
) -> StartNode:
    """Return a function like `start_node`; the node has containerd 2."""
    with requirements(settings):
        root = ensure_containerd_2(settings.cache, logging.getLogger(__name__).info)

    def start(name: str, /, **fields: Unpack[NodeFields]) -> Node:
        fields["derive"] = functools.partial(with_containerd_2, root=root)
        return start_node(name, **fields)

    return start
