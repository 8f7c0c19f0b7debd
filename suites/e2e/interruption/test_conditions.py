"""A node lacks disk space, memory, the right time or its GPU while it is provisioned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.evidence import RECORD_PATH
from suites.e2e.interruption.interrupt import (
    DONE,
    REMOVE_GPU,
    SET_CLOCK_BACK,
    SET_CLOCK_FORWARD,
    Interruption,
    once_dkms_compiles,
)
from suites.e2e.interruption.whole_run import expect_as_whole_run
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from harness.api import Argv, BootNode
    from harness.evidence.state import NodeState
    from harness.lab.node import Node
    from harness.lab.node_request import NodeRequest

HOUR_S = 3600


def disturbed(boot_node: BootNode, request: NodeRequest, *, at: str, act: str) -> Node:
    file = Interruption(at=at, act=act).file
    node = boot_node(replace(request, files=[*request.files, file]))
    assert node.guest.read_text(DONE) is not None, f"No command was '{at}'."
    node.guest.output_of("rm", file.path)
    return node


@promise(section="3", unit="suites/unit/provisioning/test_prebake.py")
def test_clock_set_to_a_time_before_the_bake_has_no_effect(
    boot_node: BootNode, usual_request: NodeRequest, whole_run: NodeState
) -> None:
    """Files with timestamps in the future are valid: the baked driver is not built again."""
    back = f"date --set=@$(($(stat -c %Y {RECORD_PATH}) - {HOUR_S}))"
    node = boot_node(replace(usual_request, before=[*usual_request.before, ["sh", "-euc", back]]))

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.decided(evidence, "install-skip-build", reason="ok")
    assert expect.step_of(evidence, "install-driver").status == "skipped"
    expect_as_whole_run(whole_run, node)


@promise(section="12", unit="suites/unit/provisioning/test_executor.py")
@pytest.mark.parametrize(
    ("at", "act"),
    [
        pytest.param("nvidia-modprobe -u -c0", SET_CLOCK_BACK, id="back before the probe"),
        pytest.param("nvidia-modprobe -u -c0", SET_CLOCK_FORWARD, id="forward before the probe"),
        pytest.param("systemctl restart containerd", SET_CLOCK_BACK, id="back before containerd"),
    ],
)
def test_clock_set_between_two_steps_has_no_effect(
    boot_node: BootNode, usual_request: NodeRequest, whole_run: NodeState, at: str, act: str
) -> None:
    """Waits and durations use the monotonic clock, so the run neither hangs nor ends early."""
    node = disturbed(boot_node, usual_request, at=at, act=act)

    evidence = node.evidence()

    expect.provisioned(evidence)
    outcome = evidence.outcome
    assert outcome is not None
    wrong = {
        step.name: step.duration_s
        for step in outcome.steps
        if step.duration_s is None or not 0 <= step.duration_s < HOUR_S
    }
    assert wrong == {}, f"Durations from 0 s were expected, but these steps took {wrong}."
    expect_as_whole_run(whole_run, node)


@promise(section="5", unit="suites/unit/provisioning/test_driver.py")
@pytest.mark.nightly
def test_gpu_that_leaves_the_bus_between_two_steps_ends_the_run(
    boot_node: BootNode, usual_request: NodeRequest, whole_run: NodeState
) -> None:
    """The node is not reported as healthy. The next run completes once the GPU is back."""
    request = replace(usual_request, config={**usual_request.config, "retry_budget_s": 180})
    node = disturbed(boot_node, request, at="nvidia-modprobe -u -c0", act=REMOVE_GPU)
    gone = node.evidence()
    node.guest.output_of("sh", "-euc", "echo 1 >/sys/bus/pci/rescan")
    node.provision("boot")

    evidence = node.evidence()

    expect.provisioned(gone, exit_code=84)
    expect.run_ended_at(gone, "query-device")
    assert not any(line.get("event") == "managed_gpu" for line in gone.prebake_lines)
    expect.provisioned(evidence)
    expect_as_whole_run(whole_run, node)


#: Leaves a few megabytes until DKMS compiles, and then also fills the blocks reserved for root.
#: This truncates the logs of the build, so they may lack the reason for the failure.
_FILL_DISK = (
    "free=$(df --output=avail --block-size=1K / | tail -n 1); "
    "fallocate -l $((free - 8000))K /var/filler; "
    + once_dkms_compiles("cat /dev/zero >/var/filler-2 2>/run/filler-error")
)
#: All processes that the driver image starts on the node are in this group. With a limit above the
#: compiler's present use, the compiler would read its own pages from the disk again and again, for
#: minutes.
_LIMIT_MEMORY = "mkdir -p /sys/fs/cgroup/k8s.io; " + once_dkms_compiles(
    "echo 1M >/sys/fs/cgroup/k8s.io/memory.max"
)


@promise(section="4", unit="suites/unit/provisioning/test_boot.py")
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("lack", "command", "words"),
    [
        pytest.param(
            _FILL_DISK,
            ["cat", "/run/filler-error"],
            "no space left on device",
            id="disk",
        ),
        pytest.param(_LIMIT_MEMORY, ["dmesg"], "memory cgroup out of memory", id="memory"),
    ],
)
def test_build_that_lacks_resources_leaves_no_record(
    boot_node: BootNode, usual_request: NodeRequest, lack: str, command: Argv, words: str
) -> None:
    """The run fails with 84 and leaves no record that claims a driver; the next run builds again."""
    request = replace(
        usual_request,
        config={**usual_request.config, "retry_budget_s": 240},
        before=[*usual_request.before, ["rm", RECORD_PATH], ["sh", "-euc", lack]],
    )
    node = boot_node(request)
    # The disk may be full, so this command writes no file.
    failed = node.evidence(commands={"why": command})
    node.guest.output_of("rm", "-f", "/var/filler", "/var/filler-2")
    node.provision("plan")

    evidence = node.evidence()

    assert failed.exit_code == 84
    assert words in failed.output_of("why").lower()
    expect.no_record(failed)
    expect.provisioned(evidence)
    expect.decided(evidence, "install", reason="no_record")
