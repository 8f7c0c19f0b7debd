"""Failures explain signs that stand for something, or only seem to."""

from __future__ import annotations

import pytest

from harness.shell.mocks.commands import ANY, Answer, Argument, Like, MockedCommand
from harness.shell.mocks.registry import MockRegistry


@pytest.mark.parametrize(
    ("arguments", "hints"),
    [
        (("install", "*"), ["The text '*' is compared as it is; a pattern is Like('*')."]),
        (("install", "..."), ["The text '...' is compared as it is"]),
        (("install", ...), []),
        (("remove", ANY, Like("a*")), []),
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
