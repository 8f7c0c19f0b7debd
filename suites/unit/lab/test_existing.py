"""A node that exists: asked for its kernel, then for everything at once, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.evidence import Evidence
from harness.lab.existing import ExistingNode
from harness.machine.node import NodeAddress
from harness.provisioning.command import LocalRunner
from harness.shell.mocks import ScriptedRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.provisioning.command import CommandResult


class RecordingRunner:
    """Lets this host answer, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        self.asked.append(tuple(argv))
        return LocalRunner().run(argv, timeout_s=timeout_s, stdin=stdin, env=env)


@pytest.mark.starts_process
def test_node_is_asked_twice_and_its_evidence_is_whole(tmp_path: Path) -> None:
    runner = RecordingRunner()

    evidence = ExistingNode(NodeAddress(), runner).collect(tmp_path / "e")

    assert runner.asked == [("uname", "-r"), ("sh",)]
    assert (
        f"commands/modinfo-{evidence.running_kernel}"
        in json.loads((tmp_path / "e/manifest.json").read_text())["files"]
    )


def test_node_that_does_not_name_its_kernel_is_not_judged(tmp_path: Path) -> None:
    with (
        ScriptedRunner().expect("uname -r", stderr="no fork", exit_code=1) as runner,
        pytest.raises(HarnessError, match="Asking the node failed"),
    ):
        ExistingNode(NodeAddress(), runner).collect(tmp_path / "e")

    assert not Evidence(tmp_path / "e").folder.exists()
