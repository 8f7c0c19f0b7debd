"""Parses command lines for fakes; an option that the fake does not know is an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.shell.mocks.commands import UnmockedCommandError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.shell.mocks.commands import Call


class UnknownInvocationError(UnmockedCommandError):
    """Code under test used an option, a subcommand or an operand that the fake does not support."""


@dataclass(frozen=True, kw_only=True)
class Syntax:
    """The options of a command.

    An option is written as its names, separated by commas, with a final `=` if the option takes a
    value: `"-q,--quiet"`, `"-n,--namespace="`. An `Invocation` lists an option under the last of
    the option's names. If `is_posix` is true, options end at the first operand.
    """

    options: Sequence[str] = ()
    is_posix: bool = False

    def parse(self, call: Call, arguments: Sequence[str] | None = None) -> Invocation:
        """Parse the arguments of a call, or the words in `arguments`, into options and operands.

        Raises UnknownInvocationError for an option that is not in `options`.
        """
        rest = list(call.arguments if arguments is None else arguments)
        known = self._known()
        values: dict[str, list[str]] = {}
        operands: list[str] = []
        while rest:
            word = rest.pop(0)
            if word == "--":
                operands += rest
                break
            if not word.startswith("-") or word == "-":
                operands.append(word)
                if self.is_posix:
                    operands += rest
                    break
                continue
            name, has_value, value = word.partition("=")
            if not word.startswith("--"):
                name, has_value, value = word[:2], "", ""
                if len(word) > 2:
                    self._split_short(call, known, word, rest)
            self._expect_known(call, known, name)
            canonical, takes_value = known[name]
            if takes_value and not has_value:
                if not rest:
                    raise UnknownInvocationError(f"'{call}': the option '{name}' needs a value.")
                value = rest.pop(0)
            elif has_value and not takes_value:
                raise UnknownInvocationError(f"'{call}': the option '{name}' takes no value.")
            values.setdefault(canonical, []).append(value)
        return Invocation(call=call, values=values, operands=tuple(operands))

    def _known(self) -> dict[str, tuple[str, bool]]:
        known = {}
        for option in self.options:
            names = option.rstrip("=").split(",")
            known.update(dict.fromkeys(names, (names[-1], option.endswith("="))))
        return known

    def _split_short(
        self, call: Call, known: Mapping[str, tuple[str, bool]], word: str, rest: list[str]
    ) -> None:
        """Insert the text after the first option letter into `rest`.

        The text is the option's value, or more options.
        """
        self._expect_known(call, known, word[:2])
        takes_value = known[word[:2]][1]
        rest.insert(0, word[2:].removeprefix("=") if takes_value else f"-{word[2:]}")

    def _expect_known(self, call: Call, known: Mapping[str, tuple[str, bool]], name: str) -> None:
        if name not in known:
            listed = ", ".join(self.options) or "none"
            raise UnknownInvocationError(
                f"'{call}' was run, but the fake of '{call.name}' does not know the option "
                f"'{name}' here; it knows: {listed}."
            )


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """A parsed command line: options by their canonical name, and operands."""

    call: Call
    values: Mapping[str, Sequence[str]]
    operands: tuple[str, ...]

    def has(self, option: str) -> bool:
        return option in self.values

    def value(self, option: str) -> str | None:
        """Return the last value of an option, or None if the option was not given."""
        return self.values[option][-1] if option in self.values else None

    def all(self, option: str) -> Sequence[str]:
        """Return all values of an option."""
        return self.values.get(option, ())


def unknown_subcommand(call: Call, name: str, known: Sequence[str]) -> UnknownInvocationError:
    """Return the error for a subcommand that the fake does not know."""
    return UnknownInvocationError(
        f"'{call}' was run, but the fake of '{call.name}' does not know the subcommand "
        f"'{name}'; it knows: {', '.join(known)}."
    )


def unknown_use(call: Call, reason: str) -> UnknownInvocationError:
    """Return the error for a use of a command that the fake does not support."""
    return UnknownInvocationError(f"'{call}' was run, but {reason}.")


def expect_no_pattern(call: Call, names: Sequence[str]) -> None:
    """Raise UnknownInvocationError for a shell pattern.

    The real tool supports patterns, but the fake does not.
    """
    for name in names:
        if any(sign in name for sign in "*?["):
            raise unknown_use(
                call, f"the fake of '{call.name}' does not know the pattern '{name}'"
            )
