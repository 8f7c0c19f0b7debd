"""Measures two ways to remove the driver, and compares the result with a node that never had a driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import expect
from harness.bench.time_to_gpu.nodes import booted_node
from harness.bench.time_to_gpu.samples import Measured, OracleResult, TeardownSample
from harness.errors import ExpectationError
from harness.evidence.state_diff import CHANGES_AT_REST, AllowedChanges, StateDiff
from harness.lab.node_request import NodeRequest
from harness.provisioner import BOOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.bench.time_to_gpu.nodes import Fleet
    from harness.evidence import Evidence
    from harness.evidence.state import NodeState
    from harness.image import Image
    from harness.lab.node import Node

#: The time limit in seconds under KVM; for TCG, the limit is multiplied by TCG's factor.
_REMOVAL_KVM_S = 60.0
FAST, DKMS_REMOVE = "fast", "dkms-remove"
_REMOVAL_STEP = "clean-up-driver"
#: Runs a command, hides its output, and prints the guest's uptime before and after the command.
_TIMED = (
    'read -r before _ </proc/uptime; "$@" >/run/timed.log 2>&1; code=$?; '
    'read -r after _ </proc/uptime; echo "$before $after"; exit "$code"'
)
_DKMS_REMOVE = (
    "for tree in /var/lib/dkms/nvidia/[0-9]*; do "
    'dkms remove "nvidia/$(basename "$tree")" --all || exit 1; done'
)
#: Items that differ between any two machines, and the files in which the harness and the
#: provisioner record their runs.
_OWN = AllowedChanges(
    paths=[
        *("/var/lib/cloud/*", "/root/.ssh/*", "/etc/ssh/ssh_host_*", "/dev/disk/by-uuid/*"),
        *(
            "/etc/hosts",
            "/etc/shadow",
            "/etc/shadow-",
            "/etc/machine-id",
            "/var/lib/dbus/machine-id",
        ),
        # cloud-init writes the time of its run into these files.
        *("/etc/sudoers", "/etc/sudoers.d/90-cloud-init-users"),
        *("/etc/netplan/*", "/etc/systemd/network/*", "/etc/gpu-node/*", "/opt/gpu-node/*"),
        *("/var/lib/gpu-node/*", "/run/gpu-node*", "/opt/azure/containers/*"),
        *("/var/cache/apt/*pkgcache.bin", "/var/lib/apt/lists/auxfiles"),
        "/var/lib/containerd/io.containerd.runtime.v2.task/k8s.io",
        "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*",
        "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256/*",
    ],
    # The kernel computes this value from the memory that is free at boot.
    sysctls=["vm.user_reserve_kbytes"],
)


def tear_down_once(fleet: Fleet, way: str, _progress: Callable[[str], None]) -> Measured:
    """Remove the driver from a new node in one way, `FAST` or `DKMS_REMOVE`, and measure the time."""
    with booted_node(fleet, _bare(fleet, fleet.baked)) as node:
        return Measured(teardowns=(_tear_down(node, way),))


def judged_teardowns(fleet: Fleet, progress: Callable[[str], None]) -> Measured:
    """Remove the driver in both ways, and compare each whole node with a node that never had the driver."""
    with booted_node(fleet, _bare(fleet, fleet.node_image)) as node:
        _boot(node)
        pristine = node.state()
    samples, results = [], []
    for way in (FAST, DKMS_REMOVE):
        progress(f"teardown and comparison, {way}")
        with booted_node(fleet, _bare(fleet, fleet.baked)) as node:
            samples.append(_tear_down(node, way))
            results.append(_judge(way, pristine, node.state()))
    return Measured(teardowns=tuple(samples), oracle=tuple(results))


def _tear_down(node: Node, way: str) -> TeardownSample:
    """Provision a node without a GPU, which removes the baked driver, and measure the removal.

    If `way` is `DKMS_REMOVE`, `dkms remove --all` runs before provisioning, and only the time of
    that command is measured.
    """
    if way == DKMS_REMOVE:
        took = _timed(node, ["sh", "-c", _DKMS_REMOVE])
        _boot(node)
        return TeardownSample(way=way, duration_s=took)
    evidence = _boot(node)
    step = expect.step_of(evidence, _REMOVAL_STEP)
    if step.status != "done" or step.duration_s is None:
        raise ExpectationError(
            f"The step '{_REMOVAL_STEP}' was expected to remove the driver, but is '{step.status}'."
        )
    return TeardownSample(way=way, duration_s=step.duration_s)


def _boot(node: Node) -> Evidence:
    """Provision a node that gets no driver; raises ExpectationError if the provisioner fails."""
    result = node.provision(BOOT)
    if not result.ok:
        raise ExpectationError(
            f"A node without a GPU was expected to boot, but its provisioner ended with exit code "
            f"{result.exit_code}:\n{result.stdout[-1500:]}"
        )
    return node.result()


def _bare(fleet: Fleet, image: Image) -> NodeRequest:
    return NodeRequest(
        name="teardown",
        image=image,
        provisioner=fleet.builtin,
        command=None,
        skip_cloud_init=True,
    )


def _timed(node: Node, argv: Sequence[str]) -> float:
    deadline = node.machine.deadline(_REMOVAL_KVM_S)
    printed = node.guest.output_of(
        "sh", "-c", _TIMED, "timed", *argv, timeout_s=max(1.0, deadline.remaining_s())
    )
    before, after = printed.split()
    return round(float(after) - float(before), 3)


def _judge(way: str, before: NodeState, after: NodeState) -> OracleResult:
    diff = StateDiff.between(before, after, CHANGES_AT_REST | _OWN)
    unknown = [f"? {each.kind.value} {each.name}: {each.reason}" for each in diff.unknown]
    return OracleResult(
        way=way,
        differences=(*(f"{each.kind.value} {each.render()}" for each in diff.changes), *unknown),
    )
