"""The calls that were made, and their order."""

from __future__ import annotations

import difflib
import fnmatch
import shlex
from typing import TYPE_CHECKING

from harness.errors import ExpectationError
from harness.shell.mocks.commands import list_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.shell.mocks.commands import Call

_REST = "..."


def assert_calls(seen: Sequence[Call], expected: Sequence[str]) -> None:
    """Fail unless the calls were exactly `expected`, each written as a line of shell.

    In a line, a word may be a shell pattern, and `...` as the last word matches all further
    arguments. A line `...` matches any number of calls. Raises ExpectationError with a diff.
    """
    lines = [_words(line) for line in expected]
    # which calls may follow the lines read so far: a line '...' adds all that come later
    ends = {0}
    for words in lines:
        if words == [_REST]:
            ends = set(range(min(ends), len(seen) + 1)) if ends else ends
        else:
            ends = {at + 1 for at in ends if at < len(seen) and _matches(words, seen[at])}
    if len(seen) in ends:
        return
    wanted = _shown(lines, seen)
    diff = "\n".join(
        difflib.unified_diff(wanted, list(map(str, seen)), "expected", "run", lineterm="", n=99)
    )
    raise ExpectationError(
        f"The commands that ran differ from the expected ones.\n{diff}{_pattern_hint(expected)}"
    )


def assert_order(seen: Sequence[Call], expected: Sequence[str]) -> None:
    """Fail unless calls like `expected` were made in this order; other calls may come between them.

    Lines are written as for `assert_calls`. Raises ExpectationError.
    """
    at = 0
    for number, line in enumerate(expected):
        words = _words(line)
        found = next((n for n in range(at, len(seen)) if _matches(words, seen[n])), None)
        if found is None:
            after = f" after '{expected[number - 1]}'" if number else ""
            hint = ""
            if any(_matches(words, call) for call in seen):
                hint = " There is one before it, so the order is another."
            raise ExpectationError(
                f"Expected a call '{line}'{after}, but there was none.{hint}\n"
                f"{list_calls(seen)}{_pattern_hint([line])}"
            )
        at = found + 1


def _pattern_hint(expected: Sequence[str]) -> str:
    """Say what signs in the expected lines stand for, where they have some."""
    words = [word for line in expected for word in _words(line)]
    sentences: list[str] = []
    if any(sign in word for word in words for sign in "*?["):
        sentences.append(
            "In a line, '*', '?' and '[...]' match as in a shell pattern, within one word."
        )
    if _REST in words:
        sentences.append(
            "The word '...' matches all further words at the end of a line; a line '...' matches any calls."
        )
    return "".join(f"\n{sentence}" for sentence in sentences)


def _words(line: str) -> list[str]:
    return shlex.split(line)


def _matches(words: Sequence[str], call: Call) -> bool:
    if words and words[-1] == _REST and len(words) > 1:
        words = words[:-1]
        if len(call.argv) < len(words):
            return False
    elif len(words) != len(call.argv):
        return False
    return all(
        word == argument or fnmatch.fnmatchcase(argument, word)
        for word, argument in zip(words, call.argv, strict=False)
    )


def _shown(lines: Sequence[Sequence[str]], seen: Sequence[Call]) -> list[str]:
    """Return expected lines; a line that a call matches is shown as the call, to diff equal."""
    shown: list[str] = []
    at = 0
    for words in lines:
        found = next((n for n in range(at, len(seen)) if _matches(words, seen[n])), None)
        if found is None:
            shown.append(shlex.join(words) if words != [_REST] else _REST)
        else:
            shown.append(str(seen[found]))
            at = found + 1
    return shown
