"""A node is judged from outside: by OpenSSH, as root and as nobody, on frozen disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.cloudinit import CONFIG_PATH
from harness.errors import HarnessError
from harness.evidence.collect import collect_guest
from harness.evidence.request import node_request
from harness.expect.node import Verdict, VerdictState, judge_node
from harness.lab.existing import ExistingNode
from harness.machine.node import NodeAddress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fixtures.layers import CloneLayer
    from harness.evidence import Evidence
    from harness.gpu import GpuModel
    from harness.lab import Lab
    from harness.lab.layers import Layer
    from harness.lab.machine import LabMachine
    from harness.lab.node import Node
    from harness.machine.ssh import SshIdentity
    from harness.provisioning.command import CommandResult, Runner

#: sshd is slow to greet under emulation.
CONNECT_S = 120
#: What a command answers depends on the moment, not on who asks.
MOVING = {"commands/journal", "commands/units", "files/proc/stat", "commands/dmesg", "stat.txt"}
#: Makes every file system read-only for the command and what it starts, and for nobody else.
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


def address_of(machine: LabMachine, identity: SshIdentity, folder: Path) -> NodeAddress:
    """Write a configuration of ssh with which the machine is known, and return its address."""
    config = folder / "ssh_config"
    config.write_text(
        "Host *\n"
        f"  IdentityFile {identity.folder}/user\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {identity.folder}/known_hosts\n"
        "  HostKeyAlias guest\n"
        "  StrictHostKeyChecking yes\n"
    )
    uri = f"ssh://root@127.0.0.1:{machine.vm.ssh_port()}?config={config}&timeout={CONNECT_S}"
    return NodeAddress.from_uri(uri, source="the test")


def by_name(verdicts: list[Verdict]) -> dict[str, Verdict]:
    return {verdict.expectation.name: verdict for verdict in verdicts}


def gathered(evidence: Evidence) -> dict[str, bytes]:
    return {
        name: path.read_bytes()
        for path in sorted(evidence.folder.rglob("*"))
        if path.is_file() and (name := str(path.relative_to(evidence.folder))) not in MOVING
    }


def test_provisioned_node_is_as_expected(lab: Lab, provisioned_node: Node, tmp_path: Path) -> None:
    """Who knows nothing of how a machine began finds a GPU node in order."""
    node = ExistingNode(address_of(provisioned_node.machine, lab.identity, tmp_path))

    verdicts = judge_node(node.collect(tmp_path / "evidence"))

    assert [each.sentence for each in verdicts if each.state is not VerdictState.MET] == []
    seen = {name: verdict.sentence for name, verdict in by_name(verdicts).items()}
    assert "10de:2330" in seen["gpu"]
    assert "kubelet.service" in seen["services"]
    assert "'/run/cdi/nvidia.yaml' offers nvidia.com/gpu=0" in seen["cdi"]


def test_looking_needs_no_writable_file_system(provisioned_node: Node, tmp_path: Path) -> None:
    """Where nothing at all can be written, the same is seen: nobody tried to."""
    request = node_request([provisioned_node.request.booted_kernel.version])
    agent = provisioned_node.machine.agent
    frozen = Wrapped(agent, "unshare", "--mount", "sh", "-c", FREEZE, "frozen")

    free = gathered(collect_guest(agent, request, tmp_path / "free"))

    assert gathered(collect_guest(frozen, request, tmp_path / "frozen")) == free


def test_who_may_not_ask_is_told_so(provisioned_node: Node, tmp_path: Path) -> None:
    """Without root some things can't be told; nothing is called wrong for want of the right."""
    request = node_request([provisioned_node.request.booted_kernel.version])
    nobody = Wrapped(provisioned_node.machine.agent, "runuser", "-u", "nobody", "--")

    evidence = collect_guest(nobody, request, tmp_path / "evidence")

    verdicts = by_name(judge_node(evidence))
    sentences = [each.sentence for each in verdicts.values()]
    assert VerdictState.NOT_MET not in {each.state for each in verdicts.values()}, sentences
    assert verdicts["gpu"].state is VerdictState.MET
    assert verdicts["log"].state is VerdictState.UNKNOWN
    assert "Operation not permitted" in verdicts["log"].sentence
    with pytest.raises(HarnessError, match=f"'{CONFIG_PATH}' was closed to who asked"):
        evidence.file(CONFIG_PATH)


def test_node_without_a_driver_is_told_what_it_lacks(
    lab: Lab, clone: CloneLayer, cloud_init_done: Layer, h100: GpuModel, tmp_path: Path
) -> None:
    """A machine with a GPU that nobody provisioned: each sentence is true of it."""
    machine = clone(cloud_init_done, gpus=[h100])
    machine.wait_for_gpu(h100)
    let_in(machine, lab.identity)
    node = ExistingNode(address_of(machine, lab.identity, tmp_path))

    verdicts = by_name(judge_node(node.collect(tmp_path / "evidence")))

    states = {name: verdict.state for name, verdict in verdicts.items()}
    assert {name for name, state in states.items() if state is VerdictState.MET} == {
        "gpu",
        "log",
        "services",
    }, verdicts
    assert VerdictState.UNKNOWN not in states.values()
    assert "no module 'nvidia' is loaded. Install a driver" in verdicts["driver"].sentence
    assert "modinfo finds none" in verdicts["module"].sentence
    assert "'/usr/bin/nvidia-smi'" in verdicts["tools"].sentence
    assert "no driver was baked into the node's image" in verdicts["record"].sentence
    assert "there is none" in verdicts["cdi"].sentence
    assert "'nvidia-container-runtime', but does not" in verdicts["runtime"].sentence


def let_in(machine: LabMachine, identity: SshIdentity) -> None:
    """Give a machine that was provisioned without keys those of the run."""
    access = identity.access
    guest = machine.guest
    guest.write_text("/root/.ssh/authorized_keys", f"{access.authorized_key}\n")
    guest.write_text("/etc/ssh/ssh_host_ed25519_key", access.host_private_key)
    guest.output_of("chmod", "600", "/root/.ssh/authorized_keys", "/etc/ssh/ssh_host_ed25519_key")
    guest.output_of("systemctl", "restart", "ssh")
    machine.ssh().run(["true"], timeout_s=CONNECT_S)
