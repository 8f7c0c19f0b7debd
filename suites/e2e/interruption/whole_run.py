"""Compares a node whose run was interrupted with one whose run was not, by the state of the whole node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import expect
from harness.api import CHANGES_OF_INSTANCES, AllowedChanges
from suites.e2e.allowed_changes import REPORTS, TOOLS

if TYPE_CHECKING:
    from harness.evidence.state import NodeState
    from harness.lab.node import Node

#: The scripts that interrupt, and what they write, and the configuration, whose time limits a test may
#: shorten; an interrupted run's own files are in `REPORTS`.
_INTERRUPTION = AllowedChanges(
    paths=["/usr/local/sbin/*", "/run/interruption-*", "/etc/gpu-node/config.json"]
)
#: What a boot of its own makes: the disk of the seed, which a clone has no more; what the kernel
#: computes from the memory that is free then; and a user's rule, which cloud-init dates.
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
#: What was only enqueued may still start.
_IDLE = 'until [ -z "$(systemctl list-jobs --no-legend)" ]; do sleep 0.1; done'


def state_of(node: Node) -> NodeState:
    """Return the state of a node once systemd has no jobs left."""
    node.guest.output_of("timeout", "120", "sh", "-c", _IDLE, timeout_s=150)
    return node.state()


def expect_as_whole_run(
    whole_run: NodeState, node: Node, *, allow: AllowedChanges = _INTERRUPTION
) -> None:
    """Expect a node to be as one whole run leaves it; raises ExpectationError with the difference.

    `allow` is what may differ beyond what any interruption makes.
    """
    allowed = CHANGES_OF_INSTANCES | REPORTS | TOOLS | _INTERRUPTION | allow
    expect.unchanged(whole_run, state_of(node), allow=allowed)
