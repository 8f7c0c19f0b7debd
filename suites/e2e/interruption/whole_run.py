"""Compares the state of the whole node after an interrupted run and after an uninterrupted run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import expect
from harness.api import CHANGES_OF_INSTANCES, AllowedChanges
from suites.e2e.allowed_changes import REPORTS, TOOLS

if TYPE_CHECKING:
    from harness.evidence.state import NodeState
    from harness.lab.node import Node

#: The scripts that interrupt a run, the files that they write, and the configuration, since a test
#: may shorten its time limits. `REPORTS` has the files of the interrupted run itself.
_INTERRUPTION = AllowedChanges(
    paths=["/usr/local/sbin/*", "/run/interruption-*", "/etc/gpu-node/config.json"]
)
#: Differences that an extra boot causes: a clone no longer has the seed disk; the kernel computes
#: values from the free memory at boot; and cloud-init writes a date into a user's rule.
COLD_BOOT = AllowedChanges(
    paths=[
        *("/dev/block/254:16", "/dev/disk/by-diskseq/2", "/dev/disk/by-id/virtio-seed"),
        *("/dev/disk/by-label/CIDATA", "/dev/disk/by-path/*pci-0000:01:00.0"),
        "/etc/sudoers.d/90-cloud-init-users",
    ],
    device_nodes=["/dev/vdb"],
    pci_functions=["0000:01:00.0"],
    mounts=["/dev", "/run"],
    sysctls=[
        *("fs.epoll.max_user_watches", "fs.fanotify.max_user_marks", "vm.user_reserve_kbytes"),
        *("fs.inotify.max_user_watches", "user.max_fanotify_marks"),
        "user.max_inotify_watches",
    ],
)
#: Units that were only enqueued may still start.
_IDLE = 'until [ -z "$(systemctl list-jobs --no-legend)" ]; do sleep 0.1; done'


def state_of(node: Node) -> NodeState:
    """Return the state of a node once systemd has no jobs left."""
    node.guest.output_of("timeout", "120", "sh", "-c", _IDLE, timeout_s=150)
    return node.state()


def expect_as_whole_run(
    whole_run: NodeState, node: Node, *, allow: AllowedChanges = _INTERRUPTION
) -> None:
    """Expect that a node has the same state as after one complete run.

    `allow` lists additional differences that are allowed. Raises ExpectationError with the
    difference.
    """
    allowed = CHANGES_OF_INSTANCES | REPORTS | TOOLS | _INTERRUPTION | allow
    expect.unchanged(whole_run, state_of(node), allow=allowed)
