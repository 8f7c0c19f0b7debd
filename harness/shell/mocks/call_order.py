"""Compares the calls of mocked commands, and their order, with the expected calls."""

from __future__ import annotations

import difflib
import fnmatch
import shlex
from typing import TYPE_CHECKING

from harness.errors import BadInputError, ExpectationError
from harness.shell.mocks.commands import list_calls
from harness.shell.value_checks import require_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.shell.mocks.commands import Call

_REST = "..."


def assert_calls(seen: Sequence[Call], expected: Sequence[str]) -> None:
    """Fail unless the calls were exactly `expected`; each expected call is a line of shell.

    In a line, a word may be a shell pattern, and `...` as the last word matches all further
    arguments. A line `...` matches any number of calls. Raises ExpectationError with a diff if the
    calls differ from `expected`.
    """
    lines = [_words(line) for line in expected]
    # the counts of calls that the lines so far can match; a line '...' adds all larger counts
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
        f"The commands that ran differ from the expected commands.\n{diff}{_pattern_hint(expected)}"
    )


def assert_order(seen: Sequence[Call], expected: Sequence[str]) -> None:
    """Fail unless the `expected` calls were made in their order; other calls may come in between.

    The lines in `expected` have the same syntax as for `assert_calls`. Raises ExpectationError if
    an expected call is missing.
    """
    at = 0
    for number, line in enumerate(expected):
        words = _words(line)
        found = next((n for n in range(at, len(seen)) if _matches(words, seen[n])), None)
        if found is None:
            after = f" after '{expected[number - 1]}'" if number else ""
            hint = ""
            if any(_matches(words, call) for call in seen):
                hint = " A matching call was made earlier, so the calls had another order."
            raise ExpectationError(
                f"Expected a call '{line}'{after}, but there was none.{hint}\n"
                f"{list_calls(seen)}{_pattern_hint([line])}"
            )
        at = found + 1


def _words(line: str) -> list[str]:
    require_text(line, source="an expected call", may_have_nul=True)
    try:
        return shlex.split(line)
    except ValueError as error:
        raise BadInputError(
            f"'{line}' is not a line of shell: {error}.", source="an expected call"
        ) from error


def _pattern_hint(expected: Sequence[str]) -> str:
    """Explain the patterns in the expected lines; return an empty text if the lines contain no patterns."""
    words = [word for line in expected for word in shlex.split(line)]
    sentences: list[str] = []
    if any(sign in word for word in words for sign in "*?["):
        sentences.append(
            "In an expected line, '*', '?' and '[...]' match as in a shell pattern, within one word."
        )
    if _REST in words:
        sentences.append(
            "At the end of an expected line, '...' matches all further words; a line that is only "
            "'...' matches any number of calls."
        )
    return "".join(f"\n{sentence}" for sentence in sentences)


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
    """Return the expected lines, but replace each line that a call matches by the call's text.

    So the diff shows no difference for a line that a call matches.
    """
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
