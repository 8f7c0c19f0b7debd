"""Reads and edits TOML as text, so that comments, order and spacing are kept.

Python 3.10 has no TOML parser, and no version of Python has a TOML writer. This module parses
tables and keys, and finds where values begin and end; it does not interpret values.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass

Key = tuple[str, ...]

_BYTE_ORDER_MARK = "\ufeff"

_PART = re.compile(
    r"""\s*(?:(?P<bare>[A-Za-z0-9_-]+)|"(?P<basic>(?:[^"\\]|\\.)*)"|'(?P<literal>[^']*)')\s*"""
)

_TOKEN = re.compile(
    r"""\"{3}(?:[^"\\]|\\.|"(?!""))*"{3,5}|'{3}(?:[^']|'(?!''))*'{3,5}|"(?:[^"\\]|\\.)*"|'[^']*'|.""",
    re.DOTALL,
)
"""Matches a string, or one character outside strings."""

#: Characters without a special meaning in a value, both in strings and outside of them.
_ORDINARY = re.compile(r"""[^"'\\#\[\]{}]+""")

_ESCAPE = re.compile(
    r"\\(?:u(?P<u>[0-9A-Fa-f]{4})|U(?P<U>[0-9A-Fa-f]{8})|(?P<blank>[ \t]*\n[ \t\n]*)|(?P<char>.))",
    re.DOTALL,
)
#: A string in three quotes may end with one or two quotes of its own.
_END_OF_STRING = {
    **{quote: re.compile(quote) for quote in "\"'"},
    **{quote * 3: re.compile(f"{quote}{{3,5}}") for quote in "\"'"},
}

_INLINE_END = re.compile(r"\s*\}\s*\Z")

#: How deeply tables may be nested. No configuration needs more levels, and Python raises
#: RecursionError at about 900.
_MOST_LEVELS = 100

_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


class TomlTextError(ValueError):
    """The text cannot be parsed or edited as TOML; the message names the line."""


@dataclass(frozen=True, kw_only=True)
class TomlEntry:
    """A table's header, or a key with its value; the entry's lines are `first` to `last`.

    `name` is the key as written, with its indentation; `comment` is the comment after the value,
    with its `#`.
    """

    path: Key
    value: str | None
    first: int
    last: int
    table: Key
    name: str = ""
    comment: str = ""

    @property
    def is_header(self) -> bool:
        return self.value is None


# Cached, since a boot reads the values of the same few texts tens of times.
@functools.lru_cache(maxsize=8)
def read_entries(text: str) -> tuple[TomlEntry, ...]:
    """Return the headers and keys of a text, each with its full path."""
    lines = text.removeprefix(_BYTE_ORDER_MARK).split("\n")
    entries: list[TomlEntry] = []
    table: Key = ()
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        if not line or line.startswith("#"):
            number += 1
            continue
        if line.startswith("["):
            width = 2 if line.startswith("[[") else 1
            table, end = _read_key(line, width, number)
            if not line.startswith("]" * width, end):
                raise TomlTextError(f"line {number + 1}: the header of a table has no end")
            entries.append(
                TomlEntry(path=table, value=None, first=number, last=number, table=table)
            )
            number += 1
            continue
        key, end = _read_key(line, 0, number)
        if not line.startswith("=", end):
            raise TomlTextError(f"line {number + 1}: expected a table or a key with a value")
        indent = len(lines[number]) - len(lines[number].lstrip())
        name = lines[number][: indent + end].rstrip()
        value, last, comment = _read_value(lines, number, line[end + 1 :])
        entries.append(
            TomlEntry(
                path=(*table, *key),
                value=value,
                first=number,
                last=last,
                table=table,
                name=name,
                comment=comment,
            )
        )
        number = last + 1
    return tuple(entries)


def _read_key(line: str, start: int, number: int) -> tuple[Key, int]:
    parts: list[str] = []
    position = start
    while True:
        match = _PART.match(line, position)
        if match is None:
            raise TomlTextError(f"line {number + 1}: expected a key at column {position + 1}")
        basic = match["basic"]
        parts.append(
            next(
                part
                for part in (
                    match["bare"],
                    None if basic is None else _unescape(basic),
                    match["literal"],
                )
                if part is not None
            )
        )
        position = match.end()
        if not line.startswith(".", position):
            return tuple(parts), position
        position += 1


def _read_value(lines: list[str], first: int, start: str) -> tuple[str, int, str]:
    """Return the text of a value, the value's last line, and the comment after the value."""
    depth = 0
    quote: str | None = None
    value: list[str] = []
    number, rest = first, start
    while True:
        position = 0
        while position < len(rest):
            if run := _ORDINARY.match(rest, position):
                value.append(run[0])
                position = run.end()
                continue
            char = rest[position]
            if quote is not None:
                if quote[0] == '"' and char == "\\":
                    value.append(rest[position : position + 2])
                    position += 2
                elif end := _END_OF_STRING[quote].match(rest, position):
                    value.append(end[0])
                    position = end.end()
                    quote = None
                else:
                    value.append(char)
                    position += 1
                continue
            if char == "#":
                break
            if char in {'"', "'"}:
                quote = char * 3 if rest.startswith(char * 3, position) else char
                value.append(quote)
                position += len(quote)
                continue
            depth += (char in {"[", "{"}) - (char in {"]", "}"})
            value.append(char)
            position += 1
        if depth <= 0 and (quote is None or len(quote) == 1):
            return "".join(value).strip(), number, rest[position:].rstrip()
        number += 1
        if number >= len(lines):
            raise TomlTextError(f"line {first + 1}: the value has no end")
        value.append("\n")
        rest = lines[number]


def read_values(text: str) -> dict[Key, str]:
    """Return the text of each value by its path, including values in inline tables.

    If a key occurs twice, which TOML forbids, the first occurrence counts, as it does for
    `set_value`.

    Raises TomlTextError if the text cannot be parsed.
    """
    return dict(_values(text))


@functools.lru_cache(maxsize=8)
def _values(text: str) -> dict[Key, str]:
    values: dict[Key, str] = {}
    for entry in read_entries(text):
        if entry.value is not None:
            _add_value(values, entry.path, entry.value, entry.first)
    return values


def _add_value(values: dict[Key, str], path: Key, value: str, number: int) -> None:
    values.setdefault(path, value)
    if not value.startswith("{"):
        return
    if len(path) > _MOST_LEVELS:
        raise TomlTextError(f"line {number + 1}: more than {_MOST_LEVELS} nested tables")
    position = 1
    while _INLINE_END.match(value, position) is None:
        key, position = _read_key(value, position, number)
        if not value.startswith("=", position):
            raise TomlTextError(f"line {number + 1}: an inline table has a key without a value")
        end = _end_of_value(value, position + 1)
        _add_value(values, (*path, *key), value[position + 1 : end].strip(), number)
        position = end + value.startswith(",", end)


def _end_of_value(value: str, start: int) -> int:
    """Return the position where a value in an inline table ends."""
    depth = 0
    for token in _TOKEN.finditer(value, start):
        if depth == 0 and token[0] in {",", "}"}:
            return token.start()
        depth += (token[0] in {"[", "{"}) - (token[0] in {"]", "}"})
    return len(value)


def get_value(text: str, path: Key) -> str | None:
    """Return the text of the value at `path`, or None if `path` has no value."""
    return _values(text).get(path)


def values_below(text: str, table: Key) -> dict[str, str]:
    """Return the keys directly in a table, with the text of their values."""
    return {path[-1]: value for path, value in _values(text).items() if path[:-1] == table}


def read_strings(value: str) -> tuple[str, ...]:
    """Return the strings in the text of an array."""
    return tuple(
        read_string(token[0]) for token in _TOKEN.finditer(value) if token[0][0] in {'"', "'"}
    )


def set_value(text: str, path: Key, value: str) -> str:
    """Return the text with the value at `path` set and everything else unchanged.

    A byte order mark is left out.

    Raises TomlTextError if the table of `path` is an inline table, because lines cannot be added to
    an inline table. Raises TomlTextError also if `path` is a table, or if `path` is in an array of
    tables and is thus ambiguous.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    entries = read_entries(text)
    lines = text.split("\n")
    for entry in entries:
        _expect_no_table(entry, path, lines)
    table = path[:-1]
    for entry in entries:
        if not entry.is_header and entry.path == path:
            comment = f"  {entry.comment}" if entry.comment else ""
            lines[entry.first : entry.last + 1] = [f"{entry.name} = {value}{comment}"]
            return "\n".join(lines)
        if not entry.is_header and entry.path == path[: len(entry.path)]:
            raise TomlTextError(
                f"line {entry.first + 1}: '{render_key(entry.path)}' is a value, expected a table"
            )
    header = next((e for e in entries if e.is_header and e.path == table), None)
    if header is not None:
        indent = lines[header.first][
            : len(lines[header.first]) - len(lines[header.first].lstrip())
        ]
        lines.insert(header.last + 1, f"{indent}{render_key(path[-1:])} = {value}")
        return "\n".join(lines)
    dotted = next(
        (
            e
            for e in entries
            if not e.is_header and len(e.table) < len(table) and e.path[: len(table)] == table
        ),
        None,
    )
    if dotted is not None:
        # TOML does not allow a header for a table that dotted keys define.
        lines.insert(dotted.last + 1, f"{render_key(path[len(dotted.table) :])} = {value}")
        return "\n".join(lines)
    if not table:
        return f"{render_key(path)} = {value}\n{text}"
    before = text if not text or text.endswith("\n") else f"{text}\n"
    return f"{before}\n[{render_key(table)}]\n{render_key(path[-1:])} = {value}\n"


def _expect_no_table(entry: TomlEntry, path: Key, lines: list[str]) -> None:
    """Raise TomlTextError if `entry` makes `path` a table, or a key in an array of tables."""
    where = f"line {entry.first + 1}: '{render_key(entry.path)}' is"
    if entry.path[: len(path)] == path and (entry.is_header or entry.path != path):
        what = "a table" if entry.is_header else "a value"
        if entry.path == path:
            raise TomlTextError(f"{where} {what}, expected a value")
        raise TomlTextError(f"{where} {what}, so '{render_key(path)}' can't be a value")
    is_array = entry.is_header and lines[entry.first].lstrip().startswith("[[")
    if is_array and entry.path == path[: len(entry.path)]:
        raise TomlTextError(f"{where} an array of tables, expected a table")


def remove_tables(text: str, table: Key) -> str:
    """Return the text without a table, the table's subtables, and the table's dotted keys.

    The empty line before a removed header is also removed, so that this function reverses
    `set_value`. `table` may be the path of a key.

    Raises TomlTextError if the table is inside an inline table.
    """
    lines = text.split("\n")
    for entry in reversed(read_entries(text)):
        if not entry.is_header and entry.path == table[: len(entry.path)] != table:
            raise TomlTextError(
                f"line {entry.first + 1}: '{render_key(entry.path)}' is written inline, so "
                f"'{render_key(table[len(entry.path) :])}' cannot be removed from it"
            )
        if entry.path[: len(table)] == table:
            is_spaced = entry.is_header and entry.first > 0 and not lines[entry.first - 1].strip()
            del lines[entry.first - is_spaced : entry.last + 1]
    # The last line of a text with "\r\n" may lack its "\n", and TOML allows no "\r" without "\n".
    return "\n".join(lines).removesuffix("\r")


def render_key(path: Key) -> str:
    """Render a key, quoting the parts that need it."""
    return ".".join(
        part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else '"' + _escape(part) + '"'
        for part in path
    )


def render_string(value: str) -> str:
    """Render a string value."""
    return f'"{_escape(value)}"'


def read_string(value: str) -> str:
    """Return the content of a string value; return any other value unchanged."""
    for quote in ('"""', "'''", '"', "'"):
        if len(value) >= 2 * len(quote) and value.startswith(quote) and value.endswith(quote):
            content = value[len(quote) : -len(quote)]
            if len(quote) > 1:
                content = content.replace("\r\n", "\n").removeprefix("\n")
            return content if quote[0] == "'" else _unescape(content)
    return value


def _unescape(text: str) -> str:
    """Return the content of a basic string; an escape that TOML does not define stays unchanged."""
    return _ESCAPE.sub(_escaped, text)


def _escaped(escape: re.Match[str]) -> str:
    if escape["blank"] is not None:
        return ""
    if escape["char"] is not None:
        return _ESCAPED.get(escape["char"], escape[0])
    code = int(escape["u"] or escape["U"], 16)
    is_scalar = code < 0xD800 or 0xDFFF < code <= 0x10FFFF
    return chr(code) if is_scalar else escape[0]


def _escape(value: str) -> str:
    # JSON's escapes are valid in TOML, and TOML needs one more escape, for DEL.
    return json.dumps(value, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")
