"""The suite for existing nodes, run on a host that is not a GPU node."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import CommandResult


def judge(folder: Path, *arguments: str) -> CommandResult:
    return LocalRunner().run(
        [
            *(sys.executable, "-m", "pytest", "suites/node", "-n0", "-p", "no:cacheprovider"),
            *(f"--evidence-dir={folder}", *arguments),
        ],
        timeout_s=120,
    )


def test_unreachable_node_is_a_harness_error(tmp_path: Path) -> None:
    """No test counts as a failure of the node, and no test is skipped."""
    result = judge(tmp_path, "--machine-driver=node", "--machine-uri=ssh://127.0.0.1:1")

    assert result.exit_code == 1
    assert "can't be reached; ssh printed: " in result.stdout
    assert "expectations not met: 0; the harness could not tell: 9" in result.stdout


def test_suite_for_existing_nodes_fails_without_the_node_machine_driver(
    tmp_path: Path,
) -> None:
    result = judge(tmp_path)

    assert result.exit_code == 1
    assert "Add --machine-driver=node" in result.stdout
    assert "the harness could not tell: 9" in result.stdout


def test_each_failed_test_of_the_existing_node_suite_keeps_evidence(
    tmp_path: Path,
) -> None:
    """Unmet expectations count as failures on any host, and their evidence is kept."""
    result = judge(tmp_path, "--machine-driver=node")

    failed = result.stdout.count("\nFAILED ")
    assert failed == len(list(tmp_path.glob("suites-node-*/local/manifest.json")))
    counted = re.findall(r"not met: (\d+); the harness could not tell: (\d+)", result.stdout)
    assert failed == sum(int(count) for counts in counted for count in counts)
