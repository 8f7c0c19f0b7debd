"""Failures explain signs that stand for something, or only seem to."""

from __future__ import annotations

import pytest

from harness.errors import ExpectationError
from harness.shell.mocks import call_order
from harness.shell.mocks.commands import ANY, Answer, Argument, Like, MockedCommand
from harness.shell.mocks.registry import MockRegistry


@pytest.mark.parametrize(
    ("arguments", "hints"),
    [
        (("install", "*"), ["The text '*' is compared as it is; a pattern is Like('*')."]),
        (("-?", "[a]"), ["a pattern is Like('-?')", "a pattern is Like('[a]')"]),
        (("install", "..."), ["The text '...' is compared as it is"]),
        (("install", ...), []),
        (("remove", ANY, Like("a*")), []),
        (("remove",), []),
    ],
)
def test_texts_that_look_like_patterns(arguments: tuple[Argument, ...], hints: list[str]) -> None:
    registry = MockRegistry()
    registry.add(command := MockedCommand("apt-get", registry.calls, reads_stdin=False))
    command.when(*arguments).answers("x")

    answer = registry.answer("apt-get", ("purge", "gcc"), "/", None, "")

    assert isinstance(answer, Answer)
    [violation] = registry.violations
    unused = "\n".join(registry.take_unused_rules())
    for hint in hints:
        assert hint in violation
        assert hint in unused
    assert ("as it is" in violation) == bool(hints)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("curl *.deb", "within one word"),
        ("curl ...", "'...' matches all further words"),
        ("... curl", "'...' matches all further words"),
        ("curl a", None),
    ],
)
def test_signs_in_lines_of_calls(line: str, hint: str | None) -> None:
    for check in (call_order.assert_calls, call_order.assert_order):
        with pytest.raises(ExpectationError) as caught:
            check([], [line])
        assert (hint or "") in str(caught.value)
        assert (" match" in str(caught.value)) == bool(hint)


def test_patterns_are_literal_for_exact_arguments() -> None:
    registry = MockRegistry()
    registry.add(command := MockedCommand("curl", registry.calls, reads_stdin=False))

    with pytest.raises(ExpectationError, match="patterns are for 'assert_order'"):
        command.assert_called_with("*")
