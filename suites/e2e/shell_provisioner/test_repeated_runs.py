"""The example provisioner runs again, after a complete run, a killed run or a teardown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.api import CHANGES_OF_INSTANCES, NodeRequest
from suites.e2e.allowed_changes import TOOLS
from suites.e2e.interruption.interrupt import DONE, KILL, Interruption
from suites.e2e.interruption.whole_run import expect_as_whole_run, state_of

if TYPE_CHECKING:
    from harness.api import BootNode, GpuModel, Image

pytestmark = [
    pytest.mark.pin_image(reason="the example is about a project's own provisioner"),
    pytest.mark.nightly,
]

KILLED = 137


@pytest.fixture
def managed(baked_image: Image, h100: GpuModel) -> NodeRequest:
    """Return the request of a managed node, which has the managed services."""
    return NodeRequest(
        name="managed",
        image=baked_image,
        gpus=[h100],
        skip_cloud_init=True,
        tags={"EnableManagedGPUExperience": "true"},
    )


def test_second_run_changes_nothing(boot_node: BootNode, managed: NodeRequest) -> None:
    node = boot_node(managed)
    before = state_of(node)

    node.provision("boot").check("The second run")

    expect_as_whole_run(before, node)
    evidence = node.evidence()
    for run in evidence.runs:
        log = evidence.of_run(run).log
        assert log.count("event=decision") == 1, (
            f"The log of run {run} has other runs' lines: {log}"
        )


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("nvidia-modprobe *", id="device"),
        pytest.param("systemctl restart containerd", id="containerd"),
        pytest.param("systemctl restart nvidia-device-plugin", id="device plugin"),
    ],
)
def test_next_run_completes_the_work_of_a_killed_run(
    boot_node: BootNode, managed: NodeRequest, at: str
) -> None:
    """The node has the same state as after one whole run."""
    whole = boot_node(managed)
    wanted = state_of(whole)
    whole.power_off()
    interruption = Interruption(at=at, act=KILL, process="provision.sh")
    node = boot_node(replace(managed, files=[interruption.file]))
    assert node.guest.read_text(DONE) is not None, f"No command was '{at}'."
    assert node.evidence().exit_code == KILLED

    node.provision("boot").check("The run after the killed one")

    expect.decided(node.evidence(), action="install-skip-build", reason="ok")
    expect_as_whole_run(wanted, node)


def test_teardown_restores_a_node_that_was_never_baked(
    boot_node: BootNode, node_image: Image, baked_image: Image
) -> None:
    """The teardown removes everything that the bake added to the image."""
    request = NodeRequest(name="no-gpu", image=node_image, skip_cloud_init=True)
    never_baked = boot_node(request)
    wanted = state_of(never_baked)
    never_baked.power_off()

    node = boot_node(replace(request, image=baked_image))

    expect.decided(node.evidence(), action="teardown", reason="opted_out")
    expect.unchanged(wanted, state_of(node), allow=CHANGES_OF_INSTANCES | TOOLS)
