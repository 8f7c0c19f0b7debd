"""The answers that calls of a mocked command get, and the calls that a mock expects."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.shell.mocks.commands import ANY, Answer, Argument, Call, Like, MockedCommand
from harness.shell.mocks.registry import MockRegistry

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def registry() -> MockRegistry:
    return MockRegistry()


@pytest.fixture
def curl(registry: MockRegistry) -> MockedCommand:
    command = MockedCommand("curl", registry.calls, reads_stdin=False)
    registry.add(command)
    return command


def said(registry: MockRegistry, line: str) -> str:
    """Return what a call of a mocked command prints."""
    name, *words = line.split()
    return registry.answer(name, tuple(words), "/", None, "").stdout


def test_rule_matches_calls_by_its_arguments() -> None:
    rules: list[tuple[tuple[Argument, ...], list[tuple[str, ...]], list[tuple[str, ...]]]] = [
        ((), [()], [("a",)]),
        (("a",), [("a",)], [(), ("b",), ("a", "b")]),
        (("a", ...), [("a",), ("a", "b", "c")], [(), ("b", "a")]),
        ((...,), [(), ("a", "b")], []),
        ((ANY, "b"), [("x", "b"), ("", "b")], [("b",), ("x", "c"), ("x", "b", "c")]),
        ((Like("*.deb"), ...), [("a.deb",), ("a.deb", "b")], [("a.rpm",), ()]),
        ((Like("[ab]?"),), [("ax",)], [("cx",), ("a",), ("Ax",)]),
        (("*",), [("*",)], [("a",)]),
    ]
    for pattern, matching, others in rules:
        registry = MockRegistry()
        curl = MockedCommand("curl", registry.calls, reads_stdin=False)
        registry.add(curl)
        curl.when(*pattern).answers("yes")

        for words in matching:
            assert registry.answer("curl", words, "/", None, "").stdout == "yes"
        assert registry.violations == []
        for words in others:
            assert registry.answer("curl", words, "/", None, "").exit_code == 127
        assert len(registry.violations) == len(others)


def test_answer_comes_from_the_first_matching_rule_or_else_from_the_default(
    registry: MockRegistry, curl: MockedCommand
) -> None:
    curl.answers("default")
    curl.when("a", ...).answers("first")
    curl.when("a", "b").answers("second")

    answers = [said(registry, line) for line in ("curl a b", "curl c", "curl a")]
    assert answers == ["first", "default", "first"]
    assert registry.take_unused_rules() == ["curl a b"]
    assert registry.take_unused_rules() == []


def test_answers_in_turn_and_failures_are_used_the_given_number_of_times(
    registry: MockRegistry, curl: MockedCommand
) -> None:
    curl.when("turn").answers_in_turn(Answer(stdout="1"), Answer(stdout="2"))
    curl.when("flaky").fails(2, exit_code=7, takes_s=0.5, then=Answer(stdout="up"))

    flaky = [registry.answer("curl", ("flaky",), "/", None, "") for _ in range(4)]

    assert flaky == [Answer(exit_code=7, takes_s=0.5)] * 2 + [Answer(stdout="up")] * 2
    assert said(registry, "curl turn") == "1"
    assert registry.take_unused_rules() == ["curl turn"]
    assert said(registry, "curl turn") == "2"
    assert said(registry, "curl turn") == ""
    assert registry.violations == [
        "'curl turn' was run: this is call 3 of 'curl turn', but the test has answers for only 2 calls."
    ]


def test_answer_has_the_given_output_and_exit_code_and_duration(
    registry: MockRegistry, curl: MockedCommand
) -> None:
    curl.when("a").answers("out", stderr="err", exit_code=3, takes_s=1.5)
    curl.when("f").fails(1, stdout="out", stderr="err", exit_code=3, takes_s=1.5)

    answers = [registry.answer("curl", (word,), "/", None, "") for word in "aff"]

    given = Answer(stdout="out", stderr="err", exit_code=3, takes_s=1.5)
    assert answers == [given, given, Answer()]


def test_rule_with_unused_failures_is_reported_as_unused(
    registry: MockRegistry, curl: MockedCommand
) -> None:
    """The code under test gave up before the command worked."""
    curl.fails(2)
    codes = [registry.answer("curl", (), "/", None, "").exit_code for _ in range(2)]

    assert registry.take_unused_rules() == ["curl (any arguments)"]
    codes += [registry.answer("curl", (), "/", None, "").exit_code for _ in range(2)]
    assert codes == [1, 1, 0, 0]


def test_effect_gets_the_recorded_call_and_may_replace_the_answer(
    registry: MockRegistry, curl: MockedCommand
) -> None:
    seen: list[Call] = []

    def effect(call: Call) -> Answer | None:
        seen.append(call)
        return Answer(stdout="other") if call.arguments else None

    curl.answers("own", effect=effect)

    assert (said(registry, "curl"), said(registry, "/usr/bin/curl x")) == ("own", "other")
    assert [(str(call), call.order) for call in seen] == [("curl", 0), ("curl x", 1)]
    assert registry.take_unused_rules() == []


def test_unused_rule_is_reported_but_an_unused_default_answer_is_not_reported(
    registry: MockRegistry, curl: MockedCommand
) -> None:
    wget = MockedCommand("wget", registry.calls, reads_stdin=False)
    registry.add(wget)
    wget.answers("x", effect=lambda _: None)
    wget.when("a").answers("x", effect=lambda _: None)

    assert registry.answer("curl", ("a",), "/", None, "") == Answer()
    assert registry.take_unused_rules() == ["wget a"]
    assert [str(call) for call in curl.calls] == ["curl a"]
    assert wget.calls == []


def test_second_default_answer_is_refused(curl: MockedCommand) -> None:
    curl.answers("x")

    with pytest.raises(HarnessError, match="has a default answer already"):
        curl.fails(1)


def test_impossible_part_of_an_answer_is_refused() -> None:
    answers: list[tuple[dict[str, Any], str]] = [
        ({"exit_code": -1}, "from 0 to 255, not -1"),
        ({"exit_code": 256}, "from 0 to 255, not 256"),
        ({"exit_code": True}, "exit_code.*type bool, but a whole number"),
        ({"exit_code": "1"}, "exit_code.*type str, but a whole number"),
        ({"exit_code": 1.0}, "exit_code.*type float, but a whole number"),
        ({"takes_s": -0.5}, r"can't run for -0\.5 s"),
        ({"takes_s": math.nan}, "can't run for nan s"),
        ({"takes_s": math.inf}, "can't run for inf s"),
        ({"takes_s": 1e10}, r"can't run for 1e\+10 s"),
        ({"takes_s": "1"}, "takes_s.*type str, but a number"),
        ({"stdout": 1e-05}, "stdout.*type float, but a text"),
        ({"stdout": b"x"}, "stdout.*type bytes, but a text"),
        ({"stderr": None}, "stderr.*type NoneType, but a text"),
        ({"effect": "x"}, "effect.*type str, but a function"),
    ]
    for fields, why in answers:
        with pytest.raises(BadInputError, match=why):
            Answer(**fields)
    with pytest.raises(HarnessError, match="lone surrogate"):
        Answer(stderr="\ud800")
    assert Answer(exit_code=255, stdout="a\0b", takes_s=10**9).exit_code == 255


def test_rule_with_parts_of_other_types_is_refused(curl: MockedCommand) -> None:
    rules: list[tuple[Callable[[Callable[[Any], Any]], object], str]] = [
        (lambda a: curl.when(a(1)), "argument of a mock's rule: .*type int, but a text"),
        (lambda a: curl.when("x", a(PurePath("y"))), "type PurePosixPath, but a text"),
        (lambda a: curl.when("x", a(...), "y"), "'...' must be the last argument"),
        (lambda a: curl.when(Like(a(1))), "pattern of Like: .*type int, but a text"),
        (lambda a: curl.assert_called_with(a(1)), "type int, but a text"),
        (lambda a: curl.assert_called_times(a("1")), "type str, but a whole number"),
        (lambda a: curl.fails(a("2")), "type str, but a whole number"),
        (lambda a: curl.fails(a(-1)), "from 0 to 1000000 times, not -1"),
        (lambda a: curl.fails(a(10**10)), "from 0 to 1000000 times, not 10000000000"),
        (lambda a: curl.fails(1, then=a("x")), "type str, but an Answer"),
        (lambda a: curl.answers_in_turn(a("x")), "type str, but an Answer"),
    ]
    for make, message in rules:
        with pytest.raises(BadInputError, match=message):
            make(lambda value: value)


def test_effect_that_returns_something_else_than_an_answer_is_an_error(
    registry: MockRegistry, curl: MockedCommand
) -> None:
    effect: Any = str
    curl.answers(effect=effect)

    with pytest.raises(
        BadInputError, match=r"effect of 'curl a': .*type str, but an Answer or No"
    ):
        said(registry, "curl a")


def test_call_assertions_compare_all_arguments_and_ignore_other_commands(
    registry: MockRegistry, curl: MockedCommand
) -> None:
    registry.add(url := MockedCommand("url", registry.calls, reads_stdin=False))
    for line in ("curl a b", "url a", "curl a b"):
        said(registry, line)

    curl.assert_called_with("a", "b")
    curl.assert_called_times(2)
    url.assert_called_times(1)
    with pytest.raises(ExpectationError, match=r"Expected a call 'curl a', but there was none"):
        curl.assert_called_with("a")
    for times in (1, 3):
        with pytest.raises(ExpectationError, match=f"Expected {times} calls of 'curl'") as other:
            curl.assert_called_times(times)
        assert str(other.value).endswith("but saw 2.\nThe calls were:\n  curl a b\n  curl a b")


def test_spy_does_not_answer_for_a_missing_command(
    registry: MockRegistry, curl: MockedCommand
) -> None:
    """The mock answers for a missing command only if none of its answers runs the real command."""
    curl.when("a").answers("x")
    assert registry.answers_missing("/opt/bin/curl")
    curl.when("b").answers_in_turn(Answer(), Answer(calls_through=True))
    curl.answers("y")
    assert not registry.answers_missing("curl")
    assert not registry.answers_missing("wget")


def test_hidden_command_is_not_found_and_an_unmocked_command_is_a_violation(
    registry: MockRegistry,
) -> None:
    registry.hidden.add("jq")

    assert registry.deny("/usr/bin/jq", ["."]).stderr == "/usr/bin/jq: command not found\n"
    assert registry.violations == []
    assert registry.deny("/usr/bin/rpm", ["-q", "a b"]).exit_code == 127
    (violation,) = registry.violations
    assert violation.startswith("'rpm -q 'a b'' was run, but 'rpm' is not mocked.")
