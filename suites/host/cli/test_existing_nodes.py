"""The verdicts and the exit codes of `harness node judge`, on this host as a node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harness.cli import main
from harness.expect.every_node import NODE_EXPECTATIONS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_judgement_of_this_host_has_a_verdict_for_each_expectation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each verdict has a full sentence, and the exit code follows from the verdicts."""
    code = main(["node", "judge", "--json", f"--evidence-dir={tmp_path}"])

    document = json.loads(capsys.readouterr().out)
    verdicts = document["verdicts"]
    assert [each["name"] for each in verdicts] == [each.name for each in NODE_EXPECTATIONS]
    sentences = [each["sentence"] for each in verdicts if each["verdict"] != "unknown"]
    assert [sentence for sentence in sentences if not sentence.endswith(".")] == []
    seen = {each["verdict"] for each in verdicts}
    assert code == (1 if "not met" in seen else 2 if "unknown" in seen else 0)
    assert document["evidence"] == f"{tmp_path}/node/local"
    assert (tmp_path / "node/local/commands/uname-r").read_text().strip()


def test_exit_code_is_2_if_the_node_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No service listens on the node's port (tcpmux). Earlier evidence of the node is kept."""
    yesterday = tmp_path / "node/127.0.0.1/commands/journal"
    yesterday.parent.mkdir(parents=True)
    yesterday.touch()

    assert main(["node", "judge", "ssh://127.0.0.1:1", f"--evidence-dir={tmp_path}"]) == 2

    assert "The node 'ssh://127.0.0.1' can't be reached" in capsys.readouterr().err
    assert yesterday.exists()


def test_new_evidence_replaces_older_evidence(tmp_path: Path) -> None:
    yesterday = tmp_path / "node/local/files/stale"
    yesterday.parent.mkdir(parents=True)
    yesterday.touch()

    main(["node", "judge", "--only=log", f"--evidence-dir={tmp_path}"])

    assert (tmp_path / "node/local/commands/dmesg").exists()
    assert not yesterday.exists()
