"""Mocked commands: their answers, and the calls that the code under test made."""

from __future__ import annotations

import abc
import fnmatch
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

from typing_extensions import override

from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.shell.value_checks import require_text, require_whole_number, unexpected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import EllipsisType

_HIGHEST_EXIT_CODE = 255
_LONGEST_S = 10**9
_MOST_FAILURES = 10**6


class UnmockedCommandError(ExpectationError):
    """Code under test ran a command without a mock, or with arguments that no rule matches."""


class Like:
    """Matches any argument that matches a shell pattern."""

    def __init__(self, pattern: str) -> None:
        require_text(pattern, source="the pattern of Like")
        self.pattern = pattern

    @override
    def __repr__(self) -> str:
        return f"Like({self.pattern!r})"

    def matches(self, argument: str) -> bool:
        return fnmatch.fnmatchcase(argument, self.pattern)


ANY = Like("*")
"""Matches any one argument; an ellipsis (`...`) matches all further arguments."""

Argument = Union[str, Like, "EllipsisType"]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a mocked command.

    `order` is the call's index among all calls of the test, from 0.
    """

    name: str
    arguments: tuple[str, ...]
    cwd: str
    stdin: str | None
    order: int
    exported: Callable[[], Mapping[str, str]] = field(repr=False, compare=False)

    @property
    def argv(self) -> tuple[str, ...]:
        return (self.name, *self.arguments)

    @property
    def env(self) -> Mapping[str, str]:
        """The caller's exported variables."""
        return self.exported()

    @override
    def __str__(self) -> str:
        return shlex.join(self.argv)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The behaviour of a mocked command: its output, its exit code, and optionally a function.

    The function `effect` is called with each call; if `effect` returns an answer, that answer
    replaces this answer. `takes_s` is the duration of the command: the mock advances the virtual
    clock by this time, or waits in real time. If `calls_through` is true, the real command or
    function runs, and the mock only records the call.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    effect: Callable[[Call], Answer | None] | None = None
    takes_s: float = 0.0
    calls_through: bool = False

    def __post_init__(self) -> None:
        part = "{} of a mock's answer".format
        require_text(self.stdout, source=part("stdout"), may_have_nul=True)
        require_text(self.stderr, source=part("stderr"), may_have_nul=True)
        require_whole_number(self.exit_code, source=part("exit_code"))
        if not 0 <= self.exit_code <= _HIGHEST_EXIT_CODE:
            raise BadInputError(
                f"An exit code is a number from 0 to {_HIGHEST_EXIT_CODE}, not {self.exit_code}.",
                source=part("exit_code"),
            )
        if isinstance(self.takes_s, bool) or not isinstance(self.takes_s, (int, float)):
            raise unexpected(self.takes_s, "a number", source=part("takes_s"))
        if not 0 <= self.takes_s <= _LONGEST_S:
            raise BadInputError(
                f"A command can't run for {self.takes_s:g} s.", source=part("takes_s")
            )
        if self.effect is not None and not callable(self.effect):
            raise unexpected(self.effect, "a function", source=part("effect"))

    def to(self, call: Call) -> Answer:
        """Run the effect, and return the answer to `call`."""
        replaced = self.effect(call) if self.effect is not None else None
        if replaced is not None and not isinstance(replaced, Answer):
            raise unexpected(replaced, "an Answer or None", source=f"effect of '{call}'")
        return self if replaced is None else replaced


class _Rule:
    """The answers for calls whose arguments match `pattern`; the default rule's pattern is None."""

    def __init__(
        self,
        pattern: tuple[Argument, ...] | None,
        answers: Sequence[Answer],
        *,
        repeats_last: bool,
        must_be_used: bool,
    ) -> None:
        self.pattern = pattern
        self.answers = list(answers)
        self.repeats_last = repeats_last
        self.must_be_used = must_be_used
        self.used = 0

    def matches(self, arguments: Sequence[str]) -> bool:
        if self.pattern is None:
            return True
        rest_is_free = bool(self.pattern) and self.pattern[-1] is ...
        wanted = self.pattern[:-1] if rest_is_free else self.pattern
        if len(arguments) < len(wanted) or (len(arguments) > len(wanted) and not rest_is_free):
            return False
        return all(
            part.matches(argument) if isinstance(part, Like) else part == argument
            for part, argument in zip(wanted, arguments, strict=False)
        )

    def next_answer(self) -> Answer | None:
        """Return the next answer, or None if all answers of `answers_in_turn` have been used."""
        self.used += 1
        if self.used <= len(self.answers):
            return self.answers[self.used - 1]
        return self.answers[-1] if self.repeats_last else None

    def is_unused(self) -> bool:
        return self.must_be_used and self.used < len(self.answers)

    @override
    def __str__(self) -> str:
        if self.pattern is None:
            return "(any arguments)"
        parts = [
            "…" if part is ... else (shlex.quote(part) if isinstance(part, str) else repr(part))
            for part in self.pattern
        ]
        return " ".join(parts) or "(no arguments)"


def _require_answers(answers: Sequence[object]) -> None:
    for answer in answers:
        if not isinstance(answer, Answer):
            raise unexpected(answer, "an Answer", source="an answer of a mock")


def literal_patterns(arguments: Sequence[Argument]) -> str:
    """Return sentences about arguments that look like patterns but are compared literally."""
    sentences: dict[str, None] = {}
    for text in arguments:
        if text == "...":
            sentences[
                "The text '...' is compared literally; write ... without quotes to match all "
                "further arguments."
            ] = None
        elif isinstance(text, str) and any(sign in text for sign in "*?["):
            sentences[
                f"The text '{text}' is compared literally; as a pattern, write Like({text!r})."
            ] = None
    return "\n".join(sentences)


class _Answering(abc.ABC):
    """The methods that set the answers of a rule; `_add` of a subclass chooses the rule."""

    @abc.abstractmethod
    def _add(
        self, answers: Sequence[Answer], *, repeats_last: bool, must_be_used: bool = True
    ) -> MockedCommand:
        """Add the answers to the rule."""

    def answers(
        self,
        stdout: str = "",
        *,
        stderr: str = "",
        exit_code: int = 0,
        effect: Callable[[Call], Answer | None] | None = None,
        takes_s: float = 0.0,
    ) -> MockedCommand:
        """Give the same answer to every call that the rule matches."""
        answer = Answer(
            stdout=stdout, stderr=stderr, exit_code=exit_code, effect=effect, takes_s=takes_s
        )
        return self._add([answer], repeats_last=True, must_be_used=effect is None)

    def answers_in_turn(self, *answers: Answer) -> MockedCommand:
        """Give each call the next of `answers`; a call after the last answer fails the test."""
        _require_answers(answers)
        return self._add(answers, repeats_last=False)

    def fails(
        self,
        times: int,
        *,
        stdout: str = "",
        stderr: str = "",
        exit_code: int = 1,
        takes_s: float = 0.0,
        then: Answer | None = None,
    ) -> MockedCommand:
        """Fail the first `times` calls, then give the answer `then` to all later calls."""
        failure = Answer(stdout=stdout, stderr=stderr, exit_code=exit_code, takes_s=takes_s)
        last = Answer() if then is None else then
        _require_answers([last])
        require_whole_number(times, source="fails")
        if not 0 <= times <= _MOST_FAILURES:
            raise BadInputError(
                f"A mock can fail from 0 to {_MOST_FAILURES} times, not {times}.", source="fails"
            )
        return self._add([*[failure] * times, last], repeats_last=True)

    def calls_through(self) -> MockedCommand:
        """Record each call and let the real function or command run with its arguments."""
        return self._add([Answer(calls_through=True)], repeats_last=True)


class MockedCommand(_Answering):
    """A mocked command. If the mock has rules, a call that matches no rule fails the test.

    Rules that `when` added apply before the default answer, even rules that are newer than the
    default answer.
    """

    def __init__(
        self, name: str, calls: list[Call], *, reads_stdin: bool, optional: bool = False
    ) -> None:
        self.name = name
        self.reads_stdin = reads_stdin
        self.optional = optional
        self._all_calls = calls
        self._rules: list[_Rule] = []
        self._default: _Rule | None = None

    def when(self, *arguments: Argument) -> RuleBuilder:
        """Begin a rule for calls with these arguments; a final `...` matches any further words."""
        for argument in arguments[:-1]:
            if argument is ...:
                raise BadInputError(
                    "'...' must be the last argument; ANY matches any one argument.", source="when"
                )
        for argument in arguments:
            if argument is not ... and not isinstance(argument, Like):
                require_text(argument, source="an argument of a mock's rule")
        return RuleBuilder(self, arguments)

    @override
    def _add(
        self, answers: Sequence[Answer], *, repeats_last: bool, must_be_used: bool = True
    ) -> MockedCommand:
        if self._default is not None:
            raise HarnessError(
                f"The mock of '{self.name}' has a default answer already; give the new answer "
                "to a rule with 'when', or mock the command again."
            )
        self._default = _Rule(None, answers, repeats_last=repeats_last, must_be_used=must_be_used)
        return self

    def add_rule(
        self, pattern: tuple[Argument, ...], answers: Sequence[Answer], *, repeats_last: bool
    ) -> MockedCommand:
        """Add a rule for calls with these arguments. Tests do not call this method; they call `when`."""
        self._rules.append(_Rule(pattern, answers, repeats_last=repeats_last, must_be_used=True))
        return self

    def is_spy(self) -> bool:
        """Return whether an answer of this mock runs the real command."""
        return any(answer.calls_through for rule in self._all_rules() for answer in rule.answers)

    def _all_rules(self) -> list[_Rule]:
        return self._rules if self._default is None else [*self._rules, self._default]

    @property
    def calls(self) -> list[Call]:
        return [call for call in self._all_calls if call.name == self.name]

    def answer(self, call: Call) -> Answer | str:
        """Return the answer to `call`, or a sentence that says why the mock has no answer."""
        rules = self._all_rules()
        if not rules:
            return Answer()
        for rule in rules:
            if rule.matches(call.arguments):
                found = rule.next_answer()
                if found is not None:
                    return found.to(call)
                return (
                    f"'{call}' was run: this is call {rule.used} of '{self.name} {rule}', but the test "
                    f"has answers for only {len(rule.answers)} calls."
                )
        expected = "\n".join(f"  {self.name} {rule}" for rule in rules)
        hints = literal_patterns([part for rule in rules for part in rule.pattern or ()])
        return (
            f"'{call}' was run, which the test does not expect. The test expects:\n{expected}"
            f"{hints and chr(10)}{hints}"
        )

    def unused_rules(self) -> list[str]:
        """Return the rules that no call has used, or whose answers were not all used."""
        if self.optional:
            return []
        unused = [rule for rule in self._all_rules() if rule.is_unused()]
        return [
            "\n    ".join(
                [f"{self.name} {rule}", *literal_patterns(rule.pattern or ()).splitlines()]
            )
            for rule in unused
        ]

    def assert_called_with(self, *arguments: str) -> None:
        """Fail unless some call had exactly these arguments."""
        for argument in arguments:
            require_text(argument, source="assert_called_with")
        if not any(call.arguments == arguments for call in self.calls):
            wanted = shlex.join([self.name, *arguments])
            raise ExpectationError(
                f"Expected a call '{wanted}', but there was none.\n"
                f"{list_calls(self.calls)}{_lines_hint(arguments)}"
            )

    def assert_called_times(self, times: int) -> None:
        """Fail unless there were exactly `times` calls."""
        require_whole_number(times, source="assert_called_times")
        if len(self.calls) != times:
            raise ExpectationError(
                f"Expected {times} calls of '{self.name}', but saw {len(self.calls)}.\n"
                f"{list_calls(self.calls)}"
            )


class RuleBuilder(_Answering):
    """A rule whose arguments are set, but whose answers are not set yet."""

    def __init__(self, command: MockedCommand, pattern: tuple[Argument, ...]) -> None:
        self._command = command
        self._pattern = pattern

    @override
    def _add(
        self, answers: Sequence[Answer], *, repeats_last: bool, must_be_used: bool = True
    ) -> MockedCommand:
        return self._command.add_rule(self._pattern, answers, repeats_last=repeats_last)


def _lines_hint(arguments: Sequence[str]) -> str:
    is_pattern = any(sign in argument for argument in arguments for sign in ("*", "?", "[", "..."))
    hint = "'assert_called_with' compares texts literally; use 'assert_order' for patterns."
    return f"\n{hint}" if is_pattern else ""


def list_calls(calls: Sequence[Call]) -> str:
    """Return the calls as lines of a message."""
    lines = [f"  {call}" for call in calls] or ["  (none)"]
    return "\n".join(["The calls were:", *lines])
