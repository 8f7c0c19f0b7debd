"""Finds the commands whose path shell code looks up; the mocks of these commands must be files.

Mocks of other commands are shell functions. If NAME is a shell function, `command -v NAME` prints
only the name, and `[ -x NAME ]` fails.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ANY_NAME = "*"
"""The element that stands for any name, in a set of names that code looks up."""

_LOOKUP = re.compile(
    r"(?<![\w./$-])(?:command[ \t]+(?:-p[ \t]+)?-[vV]|type[ \t]+-[apt]+|hash[ \t]+-t)[ \t]+"
    r"(?P<words>(?:>&|&>|[^\n;|&)`])*)"
)
_DISCARDED = re.compile(r"(?:^|[^\d]|[^\d]1)>[ \t]*(?:/dev/null|&-)")
_REDIRECTION = re.compile(r"[\d&]*[<>].*")
_PLAIN_WORD = re.compile(r"[\w.+@-]+")
_SOURCED = re.compile(
    r"""(?<![\w./$-])(?:\.|source)[ \t]+["']?[^\s;&|"']*?([\w.+@-]+)(?=["'\s;&|]|$)"""
)
_HOLDS_ONE = ("command", "type", "hash")


def looked_up(text: str) -> frozenset[str]:
    """Return the names of commands whose path `text` looks up and uses.

    The set contains `ANY_NAME` if the code computes a name. A lookup whose output goes to
    `/dev/null` is ignored: such code only checks whether the command exists.
    """
    if not any(word in text for word in _HOLDS_ONE):
        return frozenset()
    names: set[str] = set()
    for found in _LOOKUP.finditer(text):
        if _DISCARDED.search(found["words"]):
            continue
        for word in _REDIRECTION.sub("", found["words"]).split():
            name = word.strip("\"'")
            names.add(name if _PLAIN_WORD.fullmatch(name) else ANY_NAME)
    return frozenset(names)


def looked_up_in_file(path: Path) -> frozenset[str]:
    """Return the names that a script, or a script that is sourced from the script's directory, looks up."""
    names: set[str] = set()
    paths = [path]
    for script in paths:
        found, sourced = _read(script, _stamp(script))
        names |= found
        paths += [other for other in sourced if other not in paths]
    return frozenset(names)


def is_looked_up(name: str, names: frozenset[str]) -> bool:
    """Return whether the looked-up `names` contain the command `name`, or ANY_NAME for any command."""
    return name in names or ANY_NAME in names


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=1024)
def _read(path: Path, _stamp: tuple[int, int]) -> tuple[frozenset[str], tuple[Path, ...]]:
    try:
        if not path.is_file():
            return frozenset(), ()
        text = path.read_text(errors="surrogateescape")
    except OSError:
        return frozenset(), ()
    sourced = {path.parent / found[1] for found in _SOURCED.finditer(text)}
    return looked_up(text), tuple(sorted(sourced - {path}))
