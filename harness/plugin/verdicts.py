"""Distinguishes two kinds of failures: a wrong node, and a node that the harness could not check."""

from __future__ import annotations

import pytest

#: Errors that mean that the node is wrong. Any other error means that the harness could not check
#: the node.
#: Allure distinguishes *failed* and *broken* in the same way.
_VERDICTS = (AssertionError, pytest.fail.Exception)
#: An attribute of reports; xdist sends all attributes of a report to the controller.
_ATTRIBUTE = "harness_could_not_tell"


def is_verdict(error: BaseException) -> bool:
    """Return whether an error, or every error of a group, means that the node is wrong."""
    parts = getattr(error, "exceptions", ())
    return isinstance(error, _VERDICTS) or (bool(parts) and all(map(is_verdict, parts)))


def mark_broken(report: pytest.TestReport) -> None:
    """Note in the report of a phase that the harness could not check the node."""
    vars(report)[_ATTRIBUTE] = True


def is_broken(report: pytest.TestReport) -> bool:
    """Return whether `mark_broken` has marked `report`."""
    return bool(getattr(report, _ATTRIBUTE, False))
