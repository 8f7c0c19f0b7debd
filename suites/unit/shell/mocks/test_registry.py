"""The calls of mocked commands."""

from __future__ import annotations

import pytest

from harness.limits import SHELL_OUTPUT, LimitError
from harness.shell.mocks.commands import MockedCommand
from harness.shell.mocks.registry import MockRegistry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> MockRegistry:
    """Give a registry that may receive 1 MiB."""
    monkeypatch.setenv(SHELL_OUTPUT.variable, "1")
    registry = MockRegistry()
    registry.commands["curl"] = MockedCommand("curl", registry.calls, reads_stdin=True)
    return registry


@pytest.mark.parametrize("kind", ["arguments", "stdin", "environment"])
def test_calls_pass_on_at_most_the_limit(registry: MockRegistry, kind: str) -> None:
    def call(number: int) -> None:
        text = f"{number:04}" + "x" * 16_380
        registry.answer(
            "curl",
            (text,) if kind == "arguments" else (),
            "/",
            text if kind == "stdin" else None,
            text if kind == "environment" else "",
        )

    for number in range(64):
        call(number)
    with pytest.raises(LimitError, match=r"'curl'.*the limit 'shell-output-mib'"):
        call(64)


def test_environment_that_stays_the_same_is_kept_once(registry: MockRegistry) -> None:
    exported = 'declare -x A="' + "x" * 100_000 + '"\n'

    for _ in range(20):
        registry.answer("curl", (), "/", None, exported)

    assert registry.calls[0].env == {"A": "x" * 100_000}


@pytest.mark.parametrize("optional", [False, True])
def test_replaced_mock_keeps_its_expectations(optional: bool) -> None:
    registry = MockRegistry()
    first = MockedCommand("curl", registry.calls, reads_stdin=False, optional=optional)
    registry.add(first)
    first.when("a").answers("first\n")
    registry.add(MockedCommand("curl", registry.calls, reads_stdin=False))

    assert registry.take_unused_rules() == (
        [] if optional else ["curl a (before a second mock of 'curl' replaced this one)"]
    )


def test_replaced_mock_is_not_required_if_it_was_used() -> None:
    registry = MockRegistry()
    first = MockedCommand("curl", registry.calls, reads_stdin=False)
    first.answers("first\n")
    registry.add(first)
    registry.answer("curl", (), "/", None, "")
    registry.add(MockedCommand("curl", registry.calls, reads_stdin=False))

    assert registry.take_unused_rules() == []
