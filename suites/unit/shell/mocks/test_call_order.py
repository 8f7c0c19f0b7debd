"""Assertions on the calls that code made, and on their order."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import BadInputError, ExpectationError
from harness.shell.mocks.call_order import assert_calls, assert_order
from harness.shell.mocks.commands import Call


def calls(*lines: str) -> list[Call]:
    return [
        Call(name=name, arguments=tuple(words), cwd="/", stdin=None, order=number, exported=dict)
        for number, (name, *words) in enumerate(line.split() for line in lines)
    ]


def test_each_line_of_assert_order_needs_a_separate_recorded_call() -> None:
    orders: list[tuple[tuple[str, ...], tuple[str, ...], str | None]] = [
        (("a x", "b", "a x"), ("a x", "a x"), None),
        (
            ("a x", "b"),
            ("a x", "a x"),
            "'a x' after 'a x', but there was none. A matching call was made earlier",
        ),
        (
            ("b", "a"),
            ("a", "b"),
            "'b' after 'a', but there was none. A matching call was made earlier",
        ),
        (("a",), ("a", "c"), "'c' after 'a', but there was none.\n"),
        (("a x y",), ("a x",), "'a x', but there was none.\n"),
        (("a x y", "a x"), ("a x ...", "a x ..."), None),
        (("a",), ("a x ...",), "'a x ...', but there was none.\n"),
    ]
    for seen, expected, why in orders:
        if why is None:
            assert_order(calls(*seen), expected)
            continue
        with pytest.raises(ExpectationError) as refused:
            assert_order(calls(*seen), expected)
        assert f"Expected a call {why}" in str(refused.value), expected


def test_line_of_three_dots_matches_any_number_of_recorded_calls() -> None:
    orders: list[tuple[tuple[str, ...], tuple[str, ...], bool]] = [
        (("a", "b", "c"), ("...",), True),
        (("a", "b", "a", "c"), ("a", "...", "a", "c"), True),
        (("a", "c"), ("a", "...", "c"), True),
        (("x", "a", "b", "a", "c"), ("...", "a", "...", "b", "..."), True),
        (("a [x] *",), ("a [x] *",), True),
        (("a x y", "b"), ("a ...", "b ..."), True),
        (("a xy", "b z"), ("a ?y", "b [!x]"), True),
        (("a xy",), ("a ?",), False),
        (("a X",), ("a [a-z]",), False),
        (("a", "b"), ("...", "a"), False),
        (("a", "b"), ("a",), False),
        (("a",), ("a", "a"), False),
        ((), ("...",), True),
        ((), ("a",), False),
    ]
    for seen, expected, is_met in orders:
        if is_met:
            assert_calls(calls(*seen), expected)
            continue
        with pytest.raises(ExpectationError, match="differ from the expected commands"):
            assert_calls(calls(*seen), expected)


def test_line_of_expected_calls_that_is_not_a_line_of_shell_is_refused() -> None:
    lines: list[tuple[Any, str]] = [
        ("a 'b", "No closing quotation"),
        ("a \\", "No escaped character"),
        (5, "of type int, but a text was expected"),
    ]
    for line, why in lines:
        for check in (assert_calls, assert_order):
            with pytest.raises(BadInputError, match=why):
                check(calls("a"), ["a", line])
