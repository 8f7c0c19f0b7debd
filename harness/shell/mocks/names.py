"""Checks the names of mocks, since a mock can be a file in the throw-away root."""

from __future__ import annotations

import os
import re

from harness.errors import BadInputError
from harness.shell.value_checks import unexpected

_NO_FUNCTION = re.compile(r"[\s|&;()<>'\"`$\\]|\A#|\A\Z")
_NAME_BYTES = 255
_PATH_BYTES = 4000


def check_mock_name(name: str, *, source: str, line: int | None = None) -> None:
    """Raise BadInputError unless `name` can be the name of a command or the path of a file.

    The harness writes a script under the mock's name, so a name with `..` could make the harness
    write to any path.
    """
    if not isinstance(name, str):
        raise unexpected(name, "a text", source=source)
    refusal = _refusal_of(name)
    if refusal:
        raise BadInputError(
            f"A mock can't be called {_shown(name)}: {refusal}. Name a command, or the path of its "
            "file.",
            source=source,
            line=line,
        )


def can_be_function(name: str) -> bool:
    """Return whether bash accepts `function NAME`: a word without characters that need quotes."""
    return _NO_FUNCTION.search(name) is None


def mentioned_paths(name: str, text: str) -> set[str]:
    """Return the absolute paths in `text` that name the command `name` in a `bin` or `sbin` directory."""
    if f"bin/{name}" not in text:
        return set()
    path = rf"(?<![\w./$}}~*?-])(?:/[\w.+@-]+)*/s?bin/{re.escape(name)}(?![\w./+@-])"
    return set(re.findall(path, text))


def _shown(name: str) -> str:
    return repr(name if len(name) <= _NAME_BYTES else f"{name[:40]}…")


def _refusal_of(name: str) -> str:
    if not name:
        return "the name is empty"
    if name.startswith("__hx_"):
        return "the harness's own functions have such names"
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "the name contains a control character"
    if name.endswith("/"):
        return "the name ends with '/', as the path of a directory does"
    return _refusal_of_parts(name.split("/"))


def _refusal_of_parts(parts: list[str]) -> str:
    if ".." in parts or parts == ["."]:
        return "'.' and '..' are directories"
    try:
        sizes = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        return "no file can have this name"
    if max(sizes) > _NAME_BYTES or sum(sizes) + len(sizes) > _PATH_BYTES:
        return "the name is too long for a file"
    return ""
