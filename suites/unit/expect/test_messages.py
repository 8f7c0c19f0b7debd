"""What people read of a node that is wrong, and of evidence that does not tell: whole sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import ExpectationError, HarnessError
from harness.expect.every_node import judge_node, node_expectations
from suites.unit.evidence.folders import a_serving_node
from suites.unit.expect.test_every_node import NOT_MET, UNKNOWN
from suites.unit.provisioning.goldens import expect_golden
from suites.unit.test_expect import REFUSED, UNDECIDED

if TYPE_CHECKING:
    from collections.abc import Iterable

GOLDENS = Path(__file__).parent / "goldens"


def page(rows: Iterable[tuple[str, str]], folder: Path) -> str:
    """Return a paragraph for each sentence, without the place of the evidence."""
    return "\n\n".join(
        f"{name}\n    {sentence.replace(str(folder), 'FOLDER').strip()}" for name, sentence in rows
    )


def test_refusals_are_worded(tmp_path: Path) -> None:
    rows = []
    for number, (name, case) in enumerate(REFUSED.items()):
        with pytest.raises(ExpectationError) as caught:
            case.judge(tmp_path / str(number))
        rows.append((name, caught.value.sentence))

    expect_golden("refusals", page(rows, tmp_path), GOLDENS)


def test_gaps_are_worded(tmp_path: Path) -> None:
    rows = []
    for number, (name, case) in enumerate(UNDECIDED.items()):
        folder = tmp_path / str(number)
        with pytest.raises(HarnessError) as caught:
            case.judge(folder)
        rows.append((name, caught.value.sentence.replace(str(folder), "FOLDER")))

    expect_golden("gaps", page(rows, tmp_path), GOLDENS)


def test_verdicts_on_a_node_are_worded(tmp_path: Path) -> None:
    rows = []
    for number, case in enumerate((*NOT_MET, *UNKNOWN)):
        folder = tmp_path / str(number)
        evidence = case.change(a_serving_node(folder)).evidence
        (verdict,) = judge_node(evidence, node_expectations([case.name], source="the test"))
        sentence = verdict.sentence.replace(str(folder), "FOLDER")
        rows.append((f"{case.name}: {verdict.state.value}", sentence))

    expect_golden("verdicts", page(rows, tmp_path), GOLDENS)
