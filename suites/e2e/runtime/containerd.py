"""The path of containerd's configuration on a node, and containerd's version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.lab.node import Node

CONFIG = "/etc/containerd/config.toml"
CRI = '[plugins."io.containerd.grpc.v1.cri"]'


def containerd_version(node: Node) -> tuple[int, int]:
    """Return the version that the node's own containerd prints."""
    words = node.guest.output_of("/usr/bin/containerd", "--version")
    found = re.search(r"\b(\d+)\.(\d+)\.\d+", words)
    assert found is not None, f"A version was expected, but containerd printed: {words}"
    return int(found[1]), int(found[2])
