"""Some services must hold a node back until they are up, and some must not.

These nodes find their driver working and install none, which leaves the time to the services.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.lab.node import NodeRequest

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image

#: Longer than any boot here: a node that waited for it would never be seen as provisioned.
NEVER_S = "3600"
SLOW_S = 12
#: How long provisioning tries a service that never starts. Before that it needs a tenth of it.
BUDGET_S = 60

MANAGED = {"enable_managed_gpu": True, "config_gpu_driver_if_needed": False}


@pytest.mark.slow
def test_slow_monitoring_does_not_delay_node_but_slow_device_plugin_does(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """The plugin blocks, since without it no pod gets a GPU; monitoring comes when it comes."""
    node = boot_node(
        NodeRequest(
            name="slow-services",
            image=baked_image,
            gpus=[h100],
            config=MANAGED,
            stand_ins={
                "nvidia-dcgm": {"START_DELAY_S": NEVER_S},
                "nvidia-device-plugin": {"START_DELAY_S": str(SLOW_S)},
            },
        )
    )

    evidence = node.evidence()

    expect.provisioned(evidence)
    assert expect.step_of(evidence, "install-prebuilt-driver").status == "skipped"
    expect.unit_state(evidence, "nvidia-dcgm.service", active="activating")
    expect.unit_state(evidence, "nvidia-device-plugin.service", active="active")
    plugin = expect.step_of(evidence, "start-device-plugin")
    assert plugin.duration_s is not None
    assert plugin.duration_s >= SLOW_S, (
        f"The device plugin needs {SLOW_S} s to start, but provisioning waited only "
        f"{plugin.duration_s} s for it."
    )


@pytest.mark.slow
def test_failing_device_plugin_ends_with_its_own_code(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """A plugin that does not start is the node's failure, with exit code 86 and none other."""
    node = boot_node(
        NodeRequest(
            name="failing-plugin",
            image=baked_image,
            gpus=[h100],
            config={**MANAGED, "retry_budget_s": BUDGET_S},
            stand_ins={"nvidia-device-plugin": {"START_RESULT": "fail"}},
        )
    )

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=86)
    expect.step_failed(evidence, "start-device-plugin")
    expect.cloud_init_reports_failure(evidence)
