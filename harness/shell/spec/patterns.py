"""The patterns of `match pattern`, as shellspec passes them to the shell's `case`."""

from __future__ import annotations

import re

#: A bracket that closes at once is a member, and a class's brackets close no expression.
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
    """Match all of `text` against alternatives of `*`, `?`, `[…]` and `[!…]`.

    A word ends at a bar, even in brackets. A backslash and `^` are literal, since shellspec quotes
    them. An empty alternative is an invalid `case`, which matches nothing.
    """
    alternatives = pattern.split("|")
    return all(alternatives) and any(
        re.fullmatch(_to_regex(each), text, re.DOTALL) for each in alternatives
    )


def _to_regex(pattern: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(pattern):
        if found := _BRACKETS.match(pattern, at):
            out.append(_members(found[0][1:-1]))
            at = found.end()
            continue
        out.append({"*": ".*", "?": "."}.get(pattern[at], re.escape(pattern[at])))
        at += 1
    return "".join(out)


def _members(inner: str) -> str:
    """Return the expression of a bracket's content."""
    negation = "^" if inner.startswith("!") and len(inner) > 1 else ""
    members = _SPECIAL.sub(
        lambda found: _CLASSES.get(found[0], "" if len(found[0]) > 1 else f"\\{found[0]}"),
        inner[len(negation) :],
    )
    try:
        re.compile(f"[{negation}{members}]")
    except re.error:
        # No member, or a range that ends before it begins.
        return "." if negation else "(?!)"
    return f"[{negation}{members}]"
