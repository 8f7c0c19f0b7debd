"""Matches the patterns of the matcher `match pattern`.

Shellspec itself passes these patterns to the shell's `case`.
"""

from __future__ import annotations

import re

#: A `]` directly after the opening bracket is a member; the `]` of a class such as `[:digit:]` does
#: not close the expression.
_MEMBER = r"\[:[a-z]+:\]|\[(?!:[a-z]+:\])|[^\[\]]"
_BRACKETS = re.compile(rf"\[!?(?:\]|(?!!)(?:{_MEMBER}))(?:{_MEMBER})*\]")
_SPECIAL = re.compile(r"\[:[a-z]+:\]|[\\\[\]^&~]")
_CLASSES = {
    "[:alnum:]": "A-Za-z0-9", "[:alpha:]": "A-Za-z", "[:digit:]": "0-9", "[:lower:]": "a-z",
    "[:upper:]": "A-Z", "[:space:]": r"\s", "[:blank:]": r" \t", "[:xdigit:]": "0-9A-Fa-f",
    "[:punct:]": r"!-/:-@\[-`{-~",
    "[:cntrl:]": r"\x00-\x1f\x7f", "[:graph:]": "!-~", "[:print:]": " -~",
}  # fmt: skip


def pattern_matches(pattern: str, text: str) -> bool:
    """Return whether a pattern of `*`, `?`, `[…]`, `[!…]` and `|` matches the whole `text`.

    A bar separates alternatives, even in brackets. A backslash and `^` are literal, since shellspec
    quotes them. A pattern with an empty alternative matches nothing, because such a pattern is
    invalid in `case`.
    """
    alternatives = pattern.split("|")
    return all(alternatives) and any(
        re.fullmatch(_to_regex(each), text, re.DOTALL) for each in alternatives
    )


def _to_regex(pattern: str) -> str:
    parts = [""]
    at = 0
    while at < len(pattern):
        if found := _BRACKETS.match(pattern, at):
            parts[-1] += _members(found[0][1:-1])
            at = found.end()
            continue
        if pattern[at] == "*":
            parts.append("")
        else:
            parts[-1] += "." if pattern[at] == "?" else re.escape(pattern[at])
        at += 1
    first, *others = parts
    if not others:
        return first
    # As in fnmatch, a lookahead finds the first match of each part between two stars. The regular
    # expression never tries a later match, so it takes no exponential time.
    between = (f"(?=(?P<g{n}>.*?{part}))(?P=g{n})" for n, part in enumerate(others[:-1]) if part)
    return f"{first}{''.join(between)}.*{others[-1]}"


def _members(inner: str) -> str:
    """Return the regular expression for the content of a bracket expression, such as `!a-z`."""
    negation = "^" if inner.startswith("!") and len(inner) > 1 else ""
    members = _SPECIAL.sub(
        lambda found: _CLASSES.get(found[0], "" if len(found[0]) > 1 else f"\\{found[0]}"),
        inner[len(negation) :],
    )
    try:
        re.compile(f"[{negation}{members}]")
    except re.error:
        # The set has no member, or the end of a range is before its start.
        return "." if negation else "(?!)"
    return f"[{negation}{members}]"
