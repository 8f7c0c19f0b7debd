"""`harness node judge` says of a node what is so, and ends accordingly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.cli import main
from harness.cli.existing_nodes import exit_code_of
from harness.expect.every_node import NODE_EXPECTATIONS, NodeVerdict, VerdictState

if TYPE_CHECKING:
    from pathlib import Path

MET, NOT_MET, UNKNOWN = VerdictState.MET, VerdictState.NOT_MET, VerdictState.UNKNOWN


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([MET, MET], 0),
        ([MET, NOT_MET], 1),
        ([MET, UNKNOWN], 2),
        ([UNKNOWN, NOT_MET], 1),
    ],
)
def test_known_failure_counts_more_than_an_unknown(states: list[VerdictState], code: int) -> None:
    verdicts = [
        NodeVerdict(expectation=NODE_EXPECTATIONS[0], state=state, sentence="…")
        for state in states
    ]

    assert exit_code_of(verdicts) == code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://box"], "URI: 'http://box' is not the address of a node"),
        (["--only=gpus"], "--only: 'gpus' is not an expectation on a node; known are 'gpu'"),
    ],
)
def test_bad_input_ends_with_2_before_the_node_is_contacted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["node", "judge", *arguments, f"--evidence-dir={tmp_path}/e"]) == 2

    assert words in capsys.readouterr().err
    assert not (tmp_path / "e").exists()
