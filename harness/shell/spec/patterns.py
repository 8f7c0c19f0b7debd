"""The patterns of `match pattern`: those of `case`, without a backslash that escapes."""

from __future__ import annotations

import re


def pattern_matches(pattern: str, text: str) -> bool:
    """Match all of `text` against alternatives of `*`, `?`, `[…]` and `[!…]`.

    A backslash stands for itself, and the empty pattern matches nothing.
    """
    return pattern != "" and any(
        re.fullmatch(_to_regex(part), text, re.DOTALL) for part in _alternatives(pattern)
    )


def _alternatives(pattern: str) -> list[str]:
    parts = [""]
    at = 0
    while at < len(pattern):
        end = _bracket_end(pattern, at)
        if end:
            parts[-1] += pattern[at:end]
            at = end
            continue
        if pattern[at] == "|":
            parts.append("")
        else:
            parts[-1] += pattern[at]
        at += 1
    return parts


def _bracket_end(pattern: str, at: int) -> int:
    """Return where the bracket expression ends that begins at `at`; 0 where there is none."""
    if pattern[at] != "[":
        return 0
    start = at + 1
    if pattern[start : start + 1] in {"!", "^"}:
        start += 1
    end = pattern.find("]", start + 1)
    return end + 1 if end >= 0 else 0


_CLASSES = {
    "[:alnum:]": "A-Za-z0-9", "[:alpha:]": "A-Za-z", "[:digit:]": "0-9", "[:lower:]": "a-z",
    "[:upper:]": "A-Z", "[:space:]": r"\s", "[:blank:]": r" \t", "[:xdigit:]": "0-9A-Fa-f",
    "[:punct:]": r"!-/:-@\[-`{-~",
}  # fmt: skip


def _to_regex(pattern: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(pattern):
        named = re.match(r"\[([!^]?)((?:\[:[a-z]+:\]|[^\]\[])+)\]", pattern[at:])
        end = at + named.end() if named else _bracket_end(pattern, at)
        if end:
            inner = pattern[at + 1 : end - 1]
            negation = "^" if inner[:1] in {"!", "^"} else ""
            inner = inner[len(negation) :].replace("\\", r"\\").replace("]", r"\]")
            inner = inner.replace("[", r"\[") if not named or "[:" not in inner else inner
            for name, members in _CLASSES.items():
                inner = inner.replace(name.replace("]", r"\]"), members)
            out.append(f"[{negation}{inner}]")
            at = end
            continue
        out.append({"*": ".*", "?": "."}.get(pattern[at], re.escape(pattern[at])))
        at += 1
    return "".join(out)
