"""Errors of both families and the path of their evidence."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from harness.errors import (
    MESSAGE_BYTES,
    EvidencedError,
    ExpectationError,
    HarnessError,
    errors_in,
    naming,
)

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
    """The path is on its own line after the output of a console."""
    assert str(ExpectationError(sentence, evidence=KEPT)) == message
    assert str(HarnessError(sentence, evidence=KEPT)) == message
    assert str(HarnessError(sentence)) == sentence


def test_unpickled_error_has_the_evidence_of_the_pickled_error() -> None:
    error = pickle.loads(pickle.dumps(ExpectationError("Wrong kernel.", evidence=KEPT)))  # noqa: S301 - our own

    assert (error.sentence, error.evidence) == ("Wrong kernel.", KEPT)


def test_errors_that_are_causes_of_each_other_are_found_once() -> None:
    first, second, third = HarnessError("1"), ExpectationError("2"), HarnessError("3")
    fourth = HarnessError("4")
    first.__cause__, second.__context__, third.__cause__ = second, third, first
    # `raise second from ...` within the handling of another error.
    first.__context__ = fourth

    found = [error.sentence for error in errors_in(first, EvidencedError)]
    assert sorted(found) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("named", [None, "/other"])
def test_os_error_without_a_file_name_gets_the_file_name(
    named: str | None,
) -> None:
    with pytest.raises(OSError, match="No space left") as caught, naming(Path("/out/report.md")):
        raise OSError(28, "No space left on device", named)

    assert caught.value.filename == (named or "/out/report.md")


def test_message_of_an_error_cannot_control_a_terminal() -> None:
    error = HarnessError("The guest said: \x1b[2J", evidence=Path("/kept/\x1b]0;owned\x07"))

    assert str(error) == (r"The guest said: \x1b[2J The evidence is in '/kept/\x1b]0;owned\x07'.")


def test_long_message_shows_its_beginning_and_end_and_the_path_of_the_file_with_the_whole_text() -> (
    None
):
    error = HarnessError("first " + "x" * (1 << 20) + " last")
    error.whole_text = Path("/evidence/message.txt")

    assert len(str(error).encode()) <= MESSAGE_BYTES
    assert str(error).startswith("first ")
    assert str(error).endswith(" last")
    assert "The whole text is in '/evidence/message.txt'." in str(error)
