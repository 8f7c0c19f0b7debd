"""Errors of both families and the path of their evidence."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from harness.errors import ExpectationError, HarnessError, evidenced_in, printable

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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("d\u00e9bian 12", "d\u00e9bian 12"),
        ("\x1b[31mred\x07\x9b", "\ufffd[31mred\ufffd\ufffd"),
        (" a\r\n\tb ", "a b"),
        ("\ud800\ufffe", "\ufffd\ufffd"),
    ],
)
def test_text_of_others_is_one_line_that_can_be_printed(text: str, shown: str) -> None:
    assert printable(text) == shown
