"""Errors of both families and the path of their evidence."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from harness.errors import ExpectationError, HarnessError, evidenced_in

KEPT = Path("/kept/node")


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("Wrong kernel.", "Wrong kernel. The evidence is in '/kept/node'."),
        (
            "It ends with:\n[ 1.2] Panic",
            "It ends with:\n[ 1.2] Panic\nThe evidence is in '/kept/node'.",
        ),
    ],
    ids=["sentence", "console"],
)
def test_message_ends_with_the_path_of_the_evidence(sentence: str, message: str) -> None:
    """After the output of a console, on a separate line."""
    assert str(ExpectationError(sentence, evidence=KEPT)) == message
    assert str(HarnessError(sentence, evidence=KEPT)) == message
    assert str(HarnessError(sentence)) == sentence


def test_evidence_travels_with_the_error() -> None:
    error = pickle.loads(pickle.dumps(ExpectationError("Wrong kernel.", evidence=KEPT)))  # noqa: S301 - our own

    assert (error.sentence, error.evidence) == ("Wrong kernel.", KEPT)


def test_errors_that_lead_to_each_other_are_found_once() -> None:
    first, second = HarnessError("first"), ExpectationError("second")
    first.__cause__, second.__context__ = second, first

    assert sorted(error.sentence for error in evidenced_in(first)) == ["first", "second"]
