"""How a node is found wrong: by a sentence that says where the evidence lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import ExpectationError

if TYPE_CHECKING:
    from harness.evidence import Evidence


def claim(condition: bool, sentence: str, evidence: Evidence) -> None:
    """Raise ExpectationError with `sentence` where the `condition` does not hold."""
    if not condition:
        raise refusal(sentence, evidence)


def refusal(sentence: str, evidence: Evidence) -> ExpectationError:
    """Return the error to raise, for where there is no condition to give."""
    return ExpectationError(sentence, evidence=evidence.folder)
