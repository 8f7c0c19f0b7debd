"""Provisioning's commands in a machine: a boot runs exactly the planned steps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.lab.node_request import NodeRequest

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image

_STEP = re.compile(r"^([a-z][a-z0-9-]*)(?:  # .*)?$", re.MULTILINE)


@pytest.mark.nightly
def test_plan_lists_the_steps_that_the_command_boot_runs_afterwards(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """`plan` queries the node, changes nothing, and prints the steps in order."""
    node = boot_node(NodeRequest(name="plan", image=baked_image, command=None, gpus=[h100]))

    planned = node.provision("plan").check("plan").stdout
    after_plan = node.evidence()
    done = node.provision("boot").check("boot")

    evidence = node.evidence()
    expect.image_present(after_plan, _reference(baked_image))
    assert after_plan.outcome is not None
    assert after_plan.outcome.steps == (), "The plan was expected to run no step."
    outcome = evidence.outcome
    assert outcome is not None, done.stdout
    assert _STEP.findall(planned) == [step.name for step in outcome.steps]
    assert (outcome.action, outcome.reason) == ("install-skip-build", "ok")


@pytest.mark.nightly
def test_second_boot_compiles_nothing(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """At the second boot, the driver is already installed.

    The first boot has removed the driver's container image, so the second boot pulls it again.
    """
    node = boot_node(
        NodeRequest(
            name="again",
            image=baked_image,
            gpus=[h100],
            config={"mcr_repository_base": "localhost:5000/"},
            before=[["systemctl", "start", "docker-registry"]],
        )
    )
    first = node.evidence()

    node.provision("boot").check("boot")

    second = node.evidence()
    expect.provisioned(second)
    expect.gpu_bound(second, device="2330")
    kernel = baked_image.newest_kernel.version
    expect.module_built_before_boot(first, kernel)
    expect.module_built_before_boot(second, kernel)


def _reference(image: Image) -> str:
    assert image.driver is not None
    return image.driver.reference
