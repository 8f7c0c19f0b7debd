"""`harness node judge`: its verdicts about a node, and its exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.cli import main
from harness.cli.existing_nodes import exit_code_of
from harness.errors import ExpectationError, HarnessError
from harness.expect import every_node
from harness.expect.driver_report import NVIDIA_SMI
from harness.expect.every_node import (
    NODE_EXPECTATIONS,
    NodeExpectation,
    NodeVerdict,
    VerdictState,
)
from harness.lab.existing_node import ExistingNode
from suites.unit.evidence.folders import EvidenceFolder

if TYPE_CHECKING:
    from pathlib import Path

    from harness.evidence import Evidence
    from harness.evidence.request import AdditionalEvidence

MET, NOT_MET, UNKNOWN = VerdictState.MET, VerdictState.NOT_MET, VerdictState.UNKNOWN


def test_exit_code_is_1_for_a_failed_verdict_even_beside_an_unknown_verdict() -> None:
    for states, code in (
        ([MET, MET], 0),
        ([MET, NOT_MET], 1),
        ([MET, UNKNOWN], 2),
        ([UNKNOWN, NOT_MET], 1),
    ):
        verdicts = [
            NodeVerdict(expectation=NODE_EXPECTATIONS[0], state=state, sentence="…")
            for state in states
        ]

        assert exit_code_of(verdicts) == code, states


def test_exit_code_is_2_for_an_invalid_address_or_expectation_before_evidence_is_gathered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in (
        (["http://box"], "URI: 'http://box' is not the address of a node"),
        (
            ["--only=gpus"],
            "--only: 'gpus' is not an expectation on a node; the known expectations are 'gpu'",
        ),
    ):
        assert main(["node", "judge", *arguments, f"--evidence-dir={tmp_path}/e"]) == 2

        assert words in capsys.readouterr().err
        assert not (tmp_path / "e").exists()


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Fake each node's evidence, and define three expectations; return the additional commands."""
    commands: list[set[str]] = []

    def collect(node: ExistingNode, folder: Path, *, additional: AdditionalEvidence) -> Evidence:
        commands.append(set(additional.commands))
        return EvidenceFolder(folder).file("/name", f"[b]{node.name}[/b]").evidence

    def met(evidence: Evidence) -> str:
        return f"It is {evidence.file('/name')}."

    def not_met(_: Evidence) -> str:
        raise ExpectationError("There are 7 of 8.")

    def unknown(_: Evidence) -> str:
        raise HarnessError("Nobody knows.")

    monkeypatch.setattr(ExistingNode, "collect", collect)
    monkeypatch.setattr(
        every_node,
        "NODE_EXPECTATIONS",
        [
            NodeExpectation(name=name, words=f"about {name}", judge=judge)
            for name, judge in (("who", met), ("count", not_met), ("fan", unknown))
        ],
    )
    monkeypatch.setenv("COLUMNS", "160")
    return commands


@pytest.mark.usefixtures("gathered")
def test_verdict_table_has_a_row_for_each_expectation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["node", "judge", "ssh://one", f"--evidence-dir={tmp_path}"]

    assert main(argv) == 1
    lines = capsys.readouterr().out.splitlines()
    assert main([*argv, "--json"]) == 1

    rows = [
        {"name": "who", "expectation": "about who", "verdict": "met", "sentence": "It is [b]one[/b]."},
        {"name": "count", "expectation": "about count", "verdict": "not met", "sentence": "There are 7 of 8."},
        {"name": "fan", "expectation": "about fan", "verdict": "unknown", "sentence": "Nobody knows."},
    ]  # fmt: skip
    document = json.loads(capsys.readouterr().out)
    assert document == {"evidence": f"{tmp_path}/node/one", "verdicts": rows}
    shown = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert shown == [list(row.values()) for row in rows]


def test_each_node_is_judged_by_its_own_evidence_and_the_requested_expectations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gathered: list[set[str]]
) -> None:
    argv = ["node", "judge", "--only=who", f"--evidence-dir={tmp_path}"]

    assert main([*argv, "ssh://one"]) == 0
    assert main([*argv, "ssh://two"]) == 0
    assert main([*argv, "ssh://two", "--nvidia-smi", "--only=fan", "--only=nvidia-smi"]) == 2

    printed = capsys.readouterr().out
    assert [f"It is [b]{name}[/b]." in printed for name in ("one", "two")] == [True, True]
    assert sorted(path.name for path in (tmp_path / "node").iterdir()) == ["one", "two"]
    assert gathered == [set(), set(), {NVIDIA_SMI}]
