"""A working driver that is not where NVIDIA's installer puts it is not reported as missing."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from harness.expect.every_node import VerdictState, judge_node, node_expectations
from suites.e2e.existing.address import by_name

if TYPE_CHECKING:
    from suites.e2e.conftest import StartNode

#: Moves the driver as in the GPU operator's driver container: the node itself has no driver files.
_INTO_A_CONTAINER = """
mkdir -p /run/nvidia/driver/usr/bin /run/nvidia/modules /run/cdi
mv /usr/bin/nvidia-smi /usr/bin/nvidia-modprobe /run/nvidia/driver/usr/bin/
mv /lib/modules/"$(uname -r)"/updates/dkms/nvidia*.ko* /run/nvidia/modules/
depmod
rm -f /run/cdi/nvidia.yaml
"""
_SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "k8s.device-plugin.nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
}


@pytest.mark.slow
def test_node_with_a_driver_container_meets_all_driver_expectations_except_module(
    start_node: StartNode,
) -> None:
    """The driver's programs and the plugin's CDI spec are found; the verdict on the module is unknown."""
    node = start_node(
        "others", config={"config_gpu_driver_if_needed": False, "retry_budget_s": 240}
    )
    write_spec = f"printf %s {shlex.quote(json.dumps(_SPEC))} >/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"
    node.guest.output_of("sh", "-euc", f"{_INTO_A_CONTAINER}{write_spec}")

    names = ("driver", "module", "tools", "cdi")
    verdicts = by_name(judge_node(node.evidence(), node_expectations(names, source="this test")))

    assert {name: verdict.state for name, verdict in verdicts.items()} == {
        "driver": VerdictState.MET,
        "module": VerdictState.UNKNOWN,
        "tools": VerdictState.MET,
        "cdi": VerdictState.MET,
    }, verdicts
