"""Raises the error of a failed expectation; the error names the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import ExpectationError

if TYPE_CHECKING:
    from harness.evidence import Evidence


def require(condition: bool, sentence: str, evidence: Evidence) -> None:
    """Raise ExpectationError with `sentence` if `condition` is false."""
    if not condition:
        raise failure(sentence, evidence)


def failure(sentence: str, evidence: Evidence) -> ExpectationError:
    """Return the error of a failed expectation, for code that cannot call `require`."""
    return ExpectationError(sentence, evidence=evidence.folder)
