"""Machines of ours that are judged like foreign nodes: only by SSH."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from harness.cloudinit import GuestFile
from harness.lab.node_request import NodeRequest
from harness.plugin.evidence_sources import NodeEvidenceSource
from harness.plugin.report import kept_on_failure
from harness.plugin.select import requirements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.gpu import GpuModel
    from harness.image import Image
    from harness.lab import Lab
    from harness.lab.node import Node
    from harness.settings import Settings

_REFRESH = "/usr/local/sbin/refresh-cdi"
_SPEC = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
}
#: A unit that writes the CDI spec, as NVIDIA's container toolkit installs one.
TOOLKIT = (
    GuestFile(
        path=_REFRESH,
        content=(
            "#!/bin/sh\n[ -c /dev/nvidia0 ] || exit 1\n"
            f"mkdir -p /run/cdi && cat >/run/cdi/nvidia.yaml <<'END'\n{json.dumps(_SPEC)}\nEND\n"
        ).encode(),
        mode=0o755,
    ),
    GuestFile(
        path="/etc/systemd/system/nvidia-cdi-refresh.service",
        content=f"[Service]\nType=oneshot\nExecStart={_REFRESH}\n".encode(),
    ),
)


@pytest.fixture(scope="module")
def provisioned_node(
    pytestconfig: pytest.Config, lab: Lab, settings: Settings, baked_image: Image, h100: GpuModel
) -> Iterator[Node]:
    """Boot a node that has a GPU and provisions itself, for tests that change nothing on the node."""
    request = NodeRequest(
        name="existing",
        image=baked_image,
        gpus=[h100],
        files=TOOLKIT,
    )
    with contextlib.ExitStack() as stack:
        with requirements(settings):
            node = stack.enter_context(lab.boot(request))
        stack.enter_context(kept_on_failure(pytestconfig, NodeEvidenceSource(node)))
        node.wait_until_provisioned()
        yield node
