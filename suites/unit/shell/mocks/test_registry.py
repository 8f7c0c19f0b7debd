"""The registry of mocked commands and their calls."""

from __future__ import annotations

import pytest

from harness.limits import SHELL_OUTPUT, LimitError
from harness.shell.mocks.commands import MockedCommand
from harness.shell.mocks.registry import MockRegistry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> MockRegistry:
    """Return a registry that may receive 1 MiB."""
    monkeypatch.setenv(SHELL_OUTPUT.variable, "1")
    registry = MockRegistry()
    registry.commands["curl"] = MockedCommand("curl", registry.calls, reads_stdin=True)
    return registry


@pytest.mark.parametrize("kind", ["arguments", "stdin", "environment"])
def test_recorded_calls_beyond_the_output_limit_are_refused(
    registry: MockRegistry, kind: str
) -> None:
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


def test_unchanged_environment_of_calls_is_stored_once(registry: MockRegistry) -> None:
    exported = 'declare -x A="' + "x" * 100_000 + '"\n'

    for _ in range(20):
        registry.answer("curl", (), "/", None, exported)

    assert registry.calls[0].env == {"A": "x" * 100_000}


def test_unused_rules_of_replaced_mocks_are_reported_once() -> None:
    for optional in (False, True):
        registry = MockRegistry()
        for rule in ("a", "b"):
            mock = MockedCommand("curl", registry.calls, reads_stdin=False, optional=optional)
            registry.add(mock)
            mock.when(rule).answers("x\n")
        registry.add(MockedCommand("curl", registry.calls, reads_stdin=False))

        assert [rule.partition(" (")[0] for rule in registry.take_unused_rules()] == (
            [] if optional else ["curl a", "curl b"]
        )
        assert registry.take_unused_rules() == []


def test_mock_of_a_path_takes_precedence_over_a_mock_of_the_command_name() -> None:
    registry = MockRegistry()
    for name in ("tool", "/opt/bin/tool"):
        mock = MockedCommand(name, registry.calls, reads_stdin=False)
        mock.answers(name)
        registry.add(mock)

    paths = ("/opt/bin/tool", "/usr/bin/tool", "tool")
    answers = [registry.answer(path, (), "/", None, "").stdout for path in paths]

    assert answers == ["/opt/bin/tool", "tool", "tool"]
    assert [(call.name, call.order) for call in registry.calls] == [
        ("/opt/bin/tool", 0), ("tool", 1), ("tool", 2),
    ]  # fmt: skip


def test_recorded_call_keeps_the_environment_that_the_call_had(registry: MockRegistry) -> None:
    for value in ("1", "2"):
        registry.answer("curl", (), "/", None, f'declare -x A="{value}"\n')

    assert [call.env for call in registry.calls] == [{"A": "1"}, {"A": "2"}]


def test_second_mock_of_a_command_replaces_the_first_mock() -> None:
    registry = MockRegistry()
    first = MockedCommand("curl", registry.calls, reads_stdin=False)
    first.answers("first\n")
    registry.add(first)
    answers = [registry.answer("curl", (), "/", None, "").stdout]
    registry.add(MockedCommand("curl", registry.calls, reads_stdin=False))
    answers.append(registry.answer("curl", (), "/", None, "").stdout)

    assert answers == ["first\n", ""]
    assert registry.take_unused_rules() == []
