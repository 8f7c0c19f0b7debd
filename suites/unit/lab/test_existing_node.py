"""The collection of evidence from an existing node whose kernel can't be queried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.evidence import Evidence
from harness.lab.existing_node import ExistingNode
from harness.machine.existing_node import NodeAddress
from harness.shell.mocks.scripted_runner import ScriptedRunner

if TYPE_CHECKING:
    from pathlib import Path


def test_evidence_is_not_collected_from_a_node_on_which_uname_fails(tmp_path: Path) -> None:
    with (
        ScriptedRunner().expect("uname -r", stderr="no fork", exit_code=1) as runner,
        pytest.raises(HarnessError, match="Asking the node failed"),
    ):
        ExistingNode(NodeAddress(), runner).collect(tmp_path / "e")

    assert not Evidence(tmp_path / "e").folder.exists()
