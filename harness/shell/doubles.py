"""Commands that stand in for real ones: what they answer, and what was asked of them."""

from __future__ import annotations

import difflib
import fnmatch
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

from typing_extensions import override

from harness.errors import ExpectationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import EllipsisType

_DENIED = """
    apk apt apt-get aptitude chroot curl dd depmod dkms dnf docker dpkg fdisk firewall-cmd
    halt helm hostnamectl init insmod ip iptables kubectl losetup lsblk mkfs modprobe mount nc
    nerdctl netplan nft nmcli nvidia-smi parted passwd podman poweroff reboot rmmod rpm rsync
    scp service shutdown snap ssh swapoff swapon sysctl systemctl tdnf telinit timedatectl
    umount update-initramfs useradd userdel usermod wget yum zypper
"""
DENIED_COMMANDS = tuple(_DENIED.split())
"""Commands that change the machine or reach the network; unmocked, they fail the test."""


class UnmockedCommandError(ExpectationError):
    """Code under test ran a command that the test did not foresee."""


class Like:
    """An argument that matches a shell pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    @override
    def __repr__(self) -> str:
        return f"Like({self.pattern!r})"

    def matches(self, argument: str) -> bool:
        return fnmatch.fnmatchcase(argument, self.pattern)


ANY = Like("*")
"""Matches any one argument; an ellipsis matches all that follow."""

Argument = Union[str, Like, "EllipsisType"]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One run of a mocked command. `order` counts over all commands of the test."""

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
    """What a mocked command does: its output, its exit code, and an effect in Python.

    The effect sees the call; where it returns an answer, that one is given instead.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    effect: Callable[[Call], Answer | None] | None = None

    def to(self, call: Call) -> Answer:
        """Return what to give to `call`, after the effect."""
        replaced = self.effect(call) if self.effect is not None else None
        return self if replaced is None else replaced


class _Rule:
    def __init__(self, pattern: tuple[Argument, ...] | None, answers: Sequence[Answer]) -> None:
        self.pattern = pattern
        self.answers = list(answers)
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
        """Return the next answer; the last of a sequence is not repeated, a lone one is."""
        self.used += 1
        if len(self.answers) == 1:
            return self.answers[0]
        return self.answers[self.used - 1] if self.used <= len(self.answers) else None

    @override
    def __str__(self) -> str:
        if self.pattern is None:
            return "(any arguments)"
        parts = [
            "…" if part is ... else (shlex.quote(part) if isinstance(part, str) else repr(part))
            for part in self.pattern
        ]
        return " ".join(parts) or "(no arguments)"


class MockedCommand:
    """A command as a test scripts it. Strict: a call that no rule foresees fails the test."""

    def __init__(self, name: str, calls: list[Call], *, reads_stdin: bool) -> None:
        self.name = name
        self.reads_stdin = reads_stdin
        self._all_calls = calls
        self._rules: list[_Rule] = []

    def answers(
        self,
        stdout: str = "",
        *,
        stderr: str = "",
        exit_code: int = 0,
        effect: Callable[[Call], Answer | None] | None = None,
    ) -> MockedCommand:
        """Answer so to any call that no narrower rule, stated earlier, matches."""
        return self._add(
            None, [Answer(stdout=stdout, stderr=stderr, exit_code=exit_code, effect=effect)]
        )

    def answers_in_turn(self, *answers: Answer) -> MockedCommand:
        """Answer the first call with the first of `answers`, and so on; one more call fails."""
        return self._add(None, answers)

    def when(self, *arguments: Argument) -> RuleInTheMaking:
        """Begin a rule for calls with these arguments; an ellipsis at the end leaves the rest."""
        return RuleInTheMaking(self, arguments)

    def _add(
        self, pattern: tuple[Argument, ...] | None, answers: Sequence[Answer]
    ) -> MockedCommand:
        self._rules.append(_Rule(pattern, answers))
        return self

    @property
    def calls(self) -> list[Call]:
        return [call for call in self._all_calls if call.name == self.name]

    def answer(self, call: Call) -> Answer | str:
        """Return what to give to `call`, or the sentence that says why nothing fits."""
        if not self._rules:
            return Answer()
        for rule in self._rules:
            if rule.matches(call.arguments):
                found = rule.next_answer()
                if found is not None:
                    return found.to(call)
                return (
                    f"'{call}' was run {rule.used} times, but the test foresees "
                    f"{len(rule.answers)} answers in turn."
                )
        foreseen = "\n".join(f"  {self.name} {rule}" for rule in self._rules)
        return f"'{call}' was run, which the test does not foresee. It foresees:\n{foreseen}"

    def unused_rules(self) -> list[str]:
        """Return what the test foresees and the code did not do."""
        return [
            f"{self.name} {rule}"
            for rule in self._rules
            if (rule.pattern is not None and not rule.used)
            or (len(rule.answers) > 1 and rule.used < len(rule.answers))
        ]

    def assert_called_with(self, *arguments: str) -> None:
        """Fail unless some call had exactly these arguments."""
        if not any(call.arguments == arguments for call in self.calls):
            wanted = shlex.join([self.name, *arguments])
            raise ExpectationError(
                f"Expected a call '{wanted}'; there was none.\n{_list(self.calls)}"
            )

    def assert_called_times(self, times: int) -> None:
        """Fail unless there were exactly so many calls."""
        if len(self.calls) != times:
            raise ExpectationError(
                f"Expected {times} calls of '{self.name}', saw {len(self.calls)}.\n"
                f"{_list(self.calls)}"
            )


class RuleInTheMaking:
    """A rule whose arguments are known and whose answer is not yet."""

    def __init__(self, command: MockedCommand, pattern: tuple[Argument, ...]) -> None:
        self._command = command
        self._pattern = pattern

    def answers(
        self,
        stdout: str = "",
        *,
        stderr: str = "",
        exit_code: int = 0,
        effect: Callable[[Call], Answer | None] | None = None,
    ) -> MockedCommand:
        """Answer so to every call with these arguments."""
        answer = Answer(stdout=stdout, stderr=stderr, exit_code=exit_code, effect=effect)
        return self._command._add(self._pattern, [answer])  # noqa: SLF001 - the rule's other half

    def answers_in_turn(self, *answers: Answer) -> MockedCommand:
        """Answer the calls with these arguments one after the other."""
        return self._command._add(self._pattern, answers)  # noqa: SLF001 - the rule's other half


def assert_calls(seen: Sequence[Call], expected: Sequence[str]) -> None:
    """Fail unless the calls were exactly `expected`, written as shell would read them.

    Raises ExpectationError with a diff of the two.
    """
    wanted = [shlex.join(shlex.split(line)) for line in expected]
    got = [str(call) for call in seen]
    if wanted != got:
        diff = "\n".join(difflib.unified_diff(wanted, got, "expected", "run", lineterm="", n=99))
        raise ExpectationError(f"The commands that ran are not those expected.\n{diff}")


def _list(calls: Sequence[Call]) -> str:
    lines = [f"  {call}" for call in calls] or ["  (none)"]
    return "\n".join(["Its calls were:", *lines])
