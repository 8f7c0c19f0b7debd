"""Judged by the state of the whole node, a teardown leaves nothing and a second run changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.api import CHANGES_OF_INSTANCES, AllowedChanges, MachineStart, NodeRequest
from suites.e2e.allowed_changes import REPORTS, TOOLS

if TYPE_CHECKING:
    from harness.api import BootNode, GpuModel, Image, Lab, Node

pytestmark = pytest.mark.nightly

#: The registry from which a second run pulls the driver image that the first run removed.
FROM_REGISTRY = {"mcr_repository_base": "localhost:5000/"}
START_REGISTRY = ["systemctl", "start", "docker-registry"]


def test_teardown_restores_a_node_that_was_never_baked(
    boot_node: BootNode, node_image: Image, baked_image: Image
) -> None:
    """A node without a GPU has the same state whether its image was baked or not."""
    never_baked = boot_node(NodeRequest(name="no-gpu", image=node_image)).state()
    node = boot_node(NodeRequest(name="no-gpu", image=baked_image))
    expect.decided(node.evidence(), action="teardown", reason="opted_out")

    expect.unchanged(never_baked, node.state(), allow=CHANGES_OF_INSTANCES | REPORTS | TOOLS)


def test_second_run_without_a_gpu_changes_nothing(boot_node: BootNode, baked_image: Image) -> None:
    """After the first teardown, the second run has nothing to do."""
    node = boot_node(NodeRequest(name="twice", image=baked_image))
    before = node.state()

    node.provision("boot").check("boot")

    expect.unchanged(before, node.state(), allow=REPORTS)


def test_second_run_with_a_gpu_changes_nothing(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """A second GPU that was plugged and unplugged in between leaves no change.

    A teardown in between does not affect the first GPU.
    """
    node = boot_node(
        NodeRequest(
            name="twice",
            image=baked_image,
            gpus=[h100],
            config=FROM_REGISTRY,
            before=[START_REGISTRY],
        )
    )
    before = node.state()

    node.provision("boot").check("boot")
    after = node.state()

    expect.unchanged(before, after, allow=REPORTS | TOOLS)
    device = node.hot_plug(h100)
    node.machine.wait_for_gpu(h100, count=2)
    node.hot_unplug(device)
    expect.unchanged(after, node.state(), allow=TOOLS)


def test_run_after_a_failed_run_leaves_the_state_of_a_single_run(
    boot_node: BootNode, baked_image: Image, h100: GpuModel
) -> None:
    """The first run fails at a service.

    After the repair, the second run leaves the same state as a run without a failure.
    """
    managed = {"enable_managed_gpu": True}
    request = NodeRequest(name="managed", image=baked_image, gpus=[h100], config=managed)
    at_once = boot_node(request)
    expect.provisioned(at_once.evidence())
    wanted = at_once.state()
    at_once.power_off()
    node = boot_node(
        replace(
            request,
            stand_ins={"nvidia-device-plugin": {"START_RESULT": "fail"}},
            config={**managed, **FROM_REGISTRY},
        )
    )
    assert node.evidence().exit_code == 86

    node.guest.output_of("rm", "-r", "/etc/gpu-node/stand-ins")
    node.guest.output_of(*START_REGISTRY)
    node.provision("boot").check("boot")
    node.guest.output_of("systemctl", "stop", "docker-registry")

    expect.unchanged(
        wanted,
        node.state(),
        allow=CHANGES_OF_INSTANCES | REPORTS | TOOLS | AllowedChanges(paths=["/etc/gpu-node/*"]),
    )


def test_node_whose_driver_was_removed_has_no_driver_artefact_after_a_reboot(
    boot_node: BootNode, lab: Lab, baked_image: Image
) -> None:
    """The same disk boots again without provisioning; no module is loaded."""
    request = NodeRequest(name="reboot", image=baked_image)
    node = boot_node(request)
    before = node.state()
    node.power_off()

    again = replace(request, command=None)
    with lab.boot(again, disk=node.machine.spec.disk, start=MachineStart.COLD) as same:
        same.wait_until_provisioned()
        expect.no_driver_artefact(same.evidence())
        expect.unchanged(before, same.state(), allow=CHANGES_OF_INSTANCES | REPORTS)


def test_teardown_by_command_restores_a_node_that_was_never_baked(
    boot_node: BootNode, node_image: Image, baked_image: Image
) -> None:
    """The node has the same state as after a boot without a GPU, although only the teardown ran."""
    states = {}
    for image in (node_image, baked_image):
        node: Node = boot_node(NodeRequest(name="teardown", image=image, command=None))
        node.provision("teardown").check("teardown")
        states[image.name, image is baked_image] = node.state()
        node.power_off()
    never_baked, torn_down = states.values()

    expect.unchanged(never_baked, torn_down, allow=CHANGES_OF_INSTANCES | REPORTS | TOOLS)
