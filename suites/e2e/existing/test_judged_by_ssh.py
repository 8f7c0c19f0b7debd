"""A node is judged from outside: by OpenSSH, as root and as `nobody`, on read-only disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.evidence.collect import collect_guest
from harness.evidence.request import node_request
from harness.expect.every_node import VerdictState, judge_node
from harness.lab.existing_node import ExistingNode
from harness.provisioner.gpu_node import CONFIG_PATH
from suites.e2e.existing.address import address_of, by_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.evidence import Evidence
    from harness.lab import Lab
    from harness.lab.node import Node
    from harness.provisioning.command import CommandResult, Runner

pytestmark = pytest.mark.pin_image(
    reason="the same script looks at each, and another node's boot takes a minute"
)

#: Expectations whose verdict depends on the time, and not on the user who asks.
MOVING = {"commands/journal", "commands/units", "files/proc/stat", "commands/dmesg", "stat.txt"}
#: Makes every file system read-only, only for the command and the processes that it starts.
FREEZE = """
mount --make-rprivate /
while read -r _ at _; do mount -o remount,bind,ro "$at" 2>/dev/null; done </proc/self/mounts
for folder in / /tmp /var/tmp /var/lib /run /dev/shm /root /etc; do
    if touch "$folder/not-frozen" 2>/dev/null; then exit 97; fi
done
exec "$@"
"""


class Wrapped:
    """A runner that puts words before each command."""

    def __init__(self, runner: Runner, *words: str) -> None:
        self._runner = runner
        self._words = words

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        return self._runner.run([*self._words, *argv], timeout_s=timeout_s, stdin=stdin, env=env)


def gathered(evidence: Evidence) -> dict[str, bytes]:
    return {
        name: path.read_bytes()
        for path in sorted(evidence.folder.rglob("*"))
        if path.is_file() and (name := str(path.relative_to(evidence.folder))) not in MOVING
    }


def test_provisioned_node_is_as_expected(lab: Lab, provisioned_node: Node, tmp_path: Path) -> None:
    """The judge has no information from the start of the machine. All expectations are met."""
    node = ExistingNode(address_of(provisioned_node.machine, lab.identity, tmp_path))

    verdicts = judge_node(node.collect(tmp_path / "evidence"))

    assert [each.sentence for each in verdicts if each.state is not VerdictState.MET] == []
    seen = {name: verdict.sentence for name, verdict in by_name(verdicts).items()}
    assert "10de:2330" in seen["gpu"]
    assert "kubelet.service" in seen["services"]
    assert "'/run/cdi/nvidia.yaml' offers nvidia.com/gpu=0" in seen["cdi"]


def test_inspection_needs_no_writable_file_system(provisioned_node: Node, tmp_path: Path) -> None:
    """The verdicts are the same on a node with only read-only file systems."""
    request = node_request([provisioned_node.request.booted_kernel.version])
    agent = provisioned_node.machine.agent
    frozen = Wrapped(agent, "unshare", "--mount", "sh", "-c", FREEZE, "frozen")

    free = gathered(collect_guest(agent, request, tmp_path / "free"))

    assert gathered(collect_guest(frozen, request, tmp_path / "frozen")) == free


def test_missing_permission_is_reported(provisioned_node: Node, tmp_path: Path) -> None:
    """Without root some checks are unknown; a missing permission is not a failed expectation."""
    request = node_request([provisioned_node.request.booted_kernel.version])
    nobody = Wrapped(provisioned_node.machine.agent, "runuser", "-u", "nobody", "--")

    evidence = collect_guest(nobody, request, tmp_path / "evidence")

    verdicts = by_name(judge_node(evidence))
    sentences = [each.sentence for each in verdicts.values()]
    assert VerdictState.NOT_MET not in {each.state for each in verdicts.values()}, sentences
    assert verdicts["gpu"].state is VerdictState.MET
    assert verdicts["log"].state is VerdictState.UNKNOWN
    assert "Operation not permitted" in verdicts["log"].sentence
    with pytest.raises(HarnessError, match=f"no permission to read '{CONFIG_PATH}'"):
        evidence.file(CONFIG_PATH)
