"""Which errors mean that the node is wrong."""

from __future__ import annotations

import pytest

from harness.errors import ExpectationError, HarnessError
from harness.plugin.verdicts import is_verdict


class SeveralError(Exception):
    """A fake ExceptionGroup, a class that Python 3.10 lacks."""

    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__()
        self.exceptions = exceptions


def test_exception_group_is_a_verdict_only_if_all_its_errors_are_verdicts() -> None:
    rows: list[tuple[BaseException, bool]] = [
        (AssertionError(), True),
        (ExpectationError("x"), True),
        (pytest.fail.Exception("x"), True),
        (HarnessError("x"), False),
        (OSError(), False),
        (SeveralError(AssertionError(), ExpectationError("x")), True),
        (SeveralError(AssertionError(), HarnessError("x")), False),
        (SeveralError(SeveralError(AssertionError())), True),
        (SeveralError(), False),
    ]
    for error, is_of_node in rows:
        assert is_verdict(error) is is_of_node, error
