"""Parses the output of `declare -p`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.shell.lexer import read_word, split_words

_DECLARED = re.compile(r"declare -(\S+) ([A-Za-z_][A-Za-z0-9_]*)(?:=(.*))?\Z", re.DOTALL)
_ESCAPED = re.compile(r"\\.")
_ELEMENT = re.compile(r"\[((?:[^\]\"]|\"(?:[^\"\\]|\\.)*\")*)\]=")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of bash: an array has `elements`, and any other variable that is set has a `value`."""

    value: str | None = None
    elements: dict[str, str] | None = None
    attributes: str = ""


def parse_declarations(text: str) -> dict[str, Variable]:
    """Return the variables in the output of `declare -p` or `export -p`."""
    found: dict[str, Variable] = {}
    for chunk in _statements(text):
        match = _DECLARED.match(chunk)
        if match is None:
            continue
        attributes, name, raw = match.groups()
        flags = attributes.strip("-")
        if raw is None:
            found[name] = Variable(attributes=flags)
        elif ("a" in flags or "A" in flags) and raw.startswith("("):
            found[name] = Variable(elements=_elements(raw[1:-1]), attributes=flags)
        else:
            found[name] = Variable(value=_text(raw), attributes=flags)
    return found


def _statements(text: str) -> list[str]:
    """Split the text at lines that begin a declaration; a quoted value may span lines."""
    chunks: list[list[str]] = []
    is_open = is_ansi_quoted = False
    for line in text.removesuffix("\n").split("\n"):
        if chunks and (not line.startswith("declare -") or is_open):
            chunks[-1].append(line)
        else:
            chunks.append([line])
            is_open = is_ansi_quoted = False
        is_ansi_quoted = is_ansi_quoted or "=$'" in line
        has_odd_quotes = _ESCAPED.sub("", line).count('"') % 2 == 1
        is_open = not is_ansi_quoted and is_open != has_odd_quotes
    return ["\n".join(lines) for lines in chunks]


def _text(raw: str) -> str:
    words = split_words(raw)
    return words[0].text if words else ""


def _elements(raw: str) -> dict[str, str]:
    elements: dict[str, str] = {}
    at = 0
    while True:
        found = _ELEMENT.search(raw, at)
        if found is None:
            return elements
        word, at = read_word(raw, found.end())
        key = split_words(found[1])[0].text if found[1].startswith('"') else found[1]
        elements[key] = word.text
