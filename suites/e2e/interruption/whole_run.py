"""Compares a node whose run was interrupted with one whose run was not, by the state of the whole node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import expect
from harness.api import AllowedChanges
from suites.e2e.allowed_changes import OWN, REPORTS, TOOLS

if TYPE_CHECKING:
    from harness.evidence.state import NodeState
    from harness.lab.node import Node

#: The scripts that interrupt, and what they write, and the configuration, whose time limits a test may
#: shorten; an interrupted run's own files are in `REPORTS`.
_INTERRUPTION = AllowedChanges(
    paths=["/usr/local/sbin/*", "/run/interruption-*", "/etc/gpu-node/config.json"]
)
#: What was only enqueued may still start.
_IDLE = 'until [ -z "$(systemctl list-jobs --no-legend)" ]; do sleep 0.1; done'


def state_of(node: Node) -> NodeState:
    """Return the state of a node once systemd has no jobs left."""
    node.guest.output_of("timeout", "120", "sh", "-c", _IDLE, timeout_s=150)
    return node.state()


def expect_as_whole_run(whole_run: NodeState, node: Node) -> None:
    """Expect a node to be as one whole run leaves it; raises ExpectationError with the difference."""
    expect.unchanged(whole_run, state_of(node), allow=OWN | REPORTS | TOOLS | _INTERRUPTION)
