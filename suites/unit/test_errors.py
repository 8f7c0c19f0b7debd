"""What the errors of both families say of the evidence."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from harness.errors import ExpectationError, HarnessError, evidenced_in

KEPT = Path("/kept/node")


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("Wrong kernel.", "Wrong kernel. The evidence lies in '/kept/node'."),
        (
            "It ends with:\n[ 1.2] Panic",
            "It ends with:\n[ 1.2] Panic\nThe evidence lies in '/kept/node'.",
        ),
    ],
    ids=["sentence", "console"],
)
def test_message_ends_with_where_the_evidence_lies(sentence: str, message: str) -> None:
    """After what a console printed, on a line of its own."""
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
