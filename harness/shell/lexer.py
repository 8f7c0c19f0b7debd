"""Splits a line of shell code into words without running the code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_DOUBLE_QUOTED_ESCAPES = frozenset('$`"\\\n')
_OPERATORS = frozenset(";&|<>()")
_PLAIN_RUN = re.compile(r"[A-Za-z0-9_./:,+@%=^}!-]+")
#: Matches the start of a shell pattern, or a brace expansion such as `{a,b}` or `{1..3}`.
_EXPANDED = re.compile(r"""[*?[]|\{[^{}'"]*(?:,|\.\.)""")
_SIMPLE_QUOTE = re.compile(r"""'([^']*)'|"([^"$`\\]*)\"""")
_HEX = "[0-9A-Fa-f]"
_ANSI_ESCAPE = re.compile(
    rf"\\(?:(?P<octal>[0-7]{{1,3}})|x(?:(?P<hex>{_HEX}{{1,2}})|\{{(?P<long>{_HEX}*)\}}?)"
    rf"|u(?P<u>{_HEX}{{1,4}})|U(?P<U>{_HEX}{{1,8}})|c(?P<control>\\\\|.)|(?P<char>.))",
    re.DOTALL,
)
_ANSI = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
    "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:,+@%=^-]+\Z")


@dataclass(frozen=True)
class Word:
    """One word of shell code: `raw` is the word as written; `text` is the word without its quotes.

    `literal` is false if the shell would still expand a part of the word; then `text` contains that
    part unexpanded.
    """

    raw: str
    text: str
    literal: bool


def split_words(line: str) -> list[Word]:
    """Split `line` at blanks as the shell does; stop at a comment or a control operator.

    A quote that is not closed extends to the end of the line.
    """
    words: list[Word] = []
    at = 0
    while True:
        at = _skip_blanks(line, at)
        if at >= len(line) or line[at] == "#" or line[at] in _OPERATORS:
            return words
        word, at = read_word(line, at)
        words.append(word)


def rest_after(line: str, count: int) -> str:
    """Return the part of `line` after its first `count` words."""
    at = 0
    for _ in range(count):
        at = _skip_blanks(line, at)
        _, at = read_word(line, at)
    return line[at:].strip()


RESERVED_WORDS = (
    "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in",
    "select", "then", "time", "until", "while",
)  # fmt: skip
"""The words of bash that begin or end a construct, and can appear where bash expects a command."""


def quote(text: str) -> str:
    """Quote `text` as one word of bash without a literal line break."""
    if _PLAIN_WORD.match(text):
        return text
    if "\n" not in text and "\r" not in text:
        return "'" + text.replace("'", "'\\''") + "'"
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "'"


def quote_on_a_line(text: str) -> str:
    """Quote `text` without a literal line break, for a shell with the variable `__hx_newline`."""
    quoted = text.replace("'", "'\\''").replace("\n", "'\"$__hx_newline\"'")
    return f"'{quoted}'"


def quote_on_lines(text: str) -> str:
    """Quote `text` for any shell; line breaks in `text` stay line breaks."""
    return "'" + text.replace("'", "'\\''") + "'"


def read_word(line: str, start: int) -> tuple[Word, int]:
    """Return the word that begins at the index `start`, and the index after the word."""
    at = start
    text: list[str] = []
    literal = True
    while at < len(line):
        run = _PLAIN_RUN.match(line, at)
        if run:
            text.append(run[0])
            at = run.end()
            continue
        quoted = _SIMPLE_QUOTE.match(line, at)
        if quoted:
            text.append(quoted[1] or quoted[2] or "")
            at = quoted.end()
            continue
        char = line[at]
        if char in " \t\n" or (char in _OPERATORS and not _opens_substitution(line, at)):
            break
        if char == "\\":
            if line.startswith("\n", at + 1):
                at += 2
                continue
            text.append(line[at + 1 : at + 2])
            at += 2
        elif char == "'":
            end = _find(line, "'", at + 1)
            text.append(line[at + 1 : end])
            at = end + 1
        elif char == '"':
            part, part_literal, at = _read_double_quoted(line, at + 1)
            text.append(part)
            literal = literal and part_literal
        elif line.startswith("$'", at):
            part, at = _read_ansi_quoted(line, at + 2)
            text.append(part)
        elif line.startswith('$"', at):
            at += 1
        elif char in "$`" or _opens_substitution(line, at):
            end = _skip_expansion(line, at)
            text.append(line[at:end])
            literal = literal and line[at:end] == "$"
            at = end
        else:
            is_home = char == "~" and at == start
            literal = literal and not (is_home or _EXPANDED.match(line, at))
            text.append(char)
            at += 1
    return Word(line[start:at], "".join(text), literal), at


def _skip_blanks(line: str, at: int) -> int:
    """Return where the next word begins; an escaped line break is treated as a blank."""
    while True:
        if line.startswith("\\\n", at):
            at += 2
        elif line[at : at + 1] in {" ", "\t", "\n"}:
            at += 1
        else:
            return at


def _opens_substitution(line: str, at: int) -> bool:
    return line.startswith(("<(", ">("), at)


def _find(line: str, what: str, start: int) -> int:
    found = line.find(what, start)
    return len(line) if found < 0 else found


def _read_double_quoted(line: str, start: int) -> tuple[str, bool, int]:
    at = start
    text: list[str] = []
    literal = True
    while at < len(line) and line[at] != '"':
        if line[at] == "\\" and line[at + 1 : at + 2] in _DOUBLE_QUOTED_ESCAPES:
            text.append(line[at + 1 : at + 2].replace("\n", ""))
            at += 2
        elif line[at] in "$`":
            end = _skip_expansion(line, at)
            literal = literal and line[at:end] == "$"
            text.append(line[at:end])
            at = end
        else:
            text.append(line[at])
            at += 1
    return "".join(text), literal, at + 1


def _read_ansi_quoted(line: str, start: int) -> tuple[str, int]:
    at = start
    while at < len(line) and line[at] != "'":
        at += 2 if line[at] == "\\" else 1
    body = line[start:at]
    # an escape may stand for one byte of a character, and a NUL ends the quote's text
    text = _ANSI_ESCAPE.sub(_unescaped, body).partition("\0")[0]
    return text.encode(errors="surrogateescape").decode(errors="surrogateescape"), at + 1


def _unescaped(found: re.Match[str]) -> str:
    if code := found["u"] or found["U"]:
        data = _utf8(int(code, 16))
    elif found["control"]:
        first, *rest = found["control"][-1].encode(errors="surrogateescape")
        data = bytes([0x7F if first == ord("?") else first & 0x1F, *rest])
    elif found["char"]:
        return _ANSI.get(found["char"], found[0])
    else:
        byte = (
            int(found["octal"], 8)
            if found["octal"]
            else int(found["hex"] or found["long"] or "0", 16)
        )
        data = bytes([byte & 0xFF])
    return data.decode(errors="surrogateescape")


def _utf8(code: int) -> bytes:
    """Encode a number in UTF-8 as bash does, even a number that Unicode does not assign to a character."""
    if code < 0x110000:
        return chr(code).encode(errors="surrogatepass")
    if code > 0x7FFFFFFF:
        return b""
    more = 3 if code < 1 << 21 else 4 if code < 1 << 26 else 5
    first = (0xFF00 >> (more + 1) & 0xFF) | code >> 6 * more
    return bytes([first, *(0x80 | code >> 6 * at & 0x3F for at in reversed(range(more)))])


def _skip_expansion(line: str, at: int) -> int:
    """Return where the expansion at `at` ends; a lone dollar sign counts as a whole expansion."""
    if line[at] == "`":
        end = at + 1
        while end < len(line) and line[end] != "`":
            end += 2 if line[end] == "\\" else 1
        return min(end + 1, len(line))
    if line[at + 1 : at + 2] not in {"(", "{"}:
        name = re.match(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]", line[at + 1 :])
        return at + 1 + (name.end() if name else 0)
    return _skip_brackets(line, at + 1)


def _skip_brackets(line: str, start: int) -> int:
    opening = line[start]
    closing = ")" if opening == "(" else "}"
    depth = 0
    at = start
    while at < len(line):
        char = line[at]
        if char == "\\":
            at += 2
            continue
        if char == "'" and opening == "(":
            at = _find(line, "'", at + 1)
        elif char == '"':
            _, _, at = _read_double_quoted(line, at + 1)
            continue
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(line)


def _words_and_comments(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each word and comment; a comment starts with `#`."""
    at = 0
    blank_before = True
    while at < len(text):
        start = at
        if text[at] in " \t\n" or (text[at] in _OPERATORS and not _opens_substitution(text, at)):
            blank_before = True
            at += 1
            continue
        if text[at] == "#" and blank_before:
            at = _find(text, "\n", at)
        else:
            _, at = read_word(text, at)
        blank_before = False
        yield start, at


def is_open(text: str) -> bool:
    """Return whether a quote or an expansion is still open at the end of `text`."""
    # a word that is still open includes the line break and the blank after the text
    return any(end > len(text) for _, end in _words_and_comments(f"{text}\n "))


def strip_comment(line: str) -> str:
    """Return `line` without the comment at its end."""
    if "#" in line:
        starts = (start for start, _ in _words_and_comments(line) if line[start] == "#")
        line = line[: next(starts, len(line))]
    return line.rstrip()
