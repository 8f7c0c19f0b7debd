"""The order in which examples run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness.plugin.specs.items import SpecFileCollector, SpecItem, in_file_order


def _example(file: SpecFileCollector, number: int) -> SpecItem:
    item = SpecItem.__new__(SpecItem)
    item.file = file
    item.case = SimpleNamespace(number=number)  # type: ignore[assignment]  # all that is asked of it
    return item


def _python_test() -> pytest.Item:
    return pytest.Function.__new__(pytest.Function)


def test_examples_of_a_file_stay_together_in_its_order() -> None:
    first, second = (SpecFileCollector.__new__(SpecFileCollector) for _ in range(2))
    a0, a1, a2 = (_example(first, number) for number in range(3))
    b0, b1 = (_example(second, number) for number in range(2))
    python = _python_test()

    assert in_file_order([b1, a2, python, a0, b0, a1]) == [b0, b1, a0, a1, a2, python]


def test_python_tests_keep_their_order() -> None:
    tests = [_python_test() for _ in range(5)]

    assert in_file_order(tests) == tests
