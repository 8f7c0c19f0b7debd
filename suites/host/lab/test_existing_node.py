"""The evidence of an existing node is gathered by two commands: its kernel, then all the rest."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from harness.evidence.request import AdditionalEvidence
from harness.lab.existing_node import ExistingNode
from harness.machine.existing_node import NodeAddress
from harness.provisioner import EvidenceDeclaration, Provisioner
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.provisioning.command import Argv, CommandResult


class RecordingRunner:
    """Runs commands on this host, and records them in `asked`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        self.asked.append(tuple(argv))
        return LocalRunner().run(argv, timeout_s=timeout_s, stdin=stdin, env=env)


def test_existing_node_evidence_is_collected_by_two_commands(tmp_path: Path) -> None:
    runner = RecordingRunner()

    evidence = ExistingNode(NodeAddress(), runner).collect(tmp_path / "e")

    assert runner.asked == [("uname", "-r"), ("sh",)]
    assert (
        f"commands/modinfo-{evidence.running_kernel}"
        in json.loads((tmp_path / "e/manifest.json").read_text())["files"]
    )


def test_evidence_that_a_provisioner_and_a_test_declare_is_gathered(tmp_path: Path) -> None:
    mine = Provisioner(
        name="mine",
        run=["/opt/mine"],
        evidence=EvidenceDeclaration(commands={"mine": ["echo", "served"]}),
    )
    additional = AdditionalEvidence(commands={"own": ["echo", "asked"]})

    evidence = ExistingNode(NodeAddress(), provisioner=mine).collect(
        tmp_path / "e", additional=additional
    )

    assert (evidence.answer_of("mine"), evidence.provisioner.name) == ("served\n", "mine")
    assert evidence.answer_of("own") == "asked\n"


#: A fake ssh that passes the command line to a shell, as sshd does.
FAKE_SSH = '#!/bin/sh\nfor line; do :; done\nexec sh -c "$line"\n'
FAKE_SUDO = '#!/bin/sh\n[ "$1" = -n ] || exit 1\nshift\nexec "$@"\n'


@pytest.mark.parametrize("by_sudo", [False, True], ids=["root", "sudo"])
def test_evidence_script_reaches_the_node_unchanged_through_ssh_and_sudo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_sudo: bool
) -> None:
    """The login shell, sudo, sh and timeout each pass the script on unchanged."""
    for name, text in (("ssh", FAKE_SSH), ("sudo", FAKE_SUDO)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    evidence = ExistingNode(NodeAddress(host="box", by_sudo=by_sudo)).collect(tmp_path / "e")

    assert evidence.running_kernel == os.uname().release
    assert evidence.paths
