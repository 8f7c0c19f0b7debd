"""Which commands shell code asks the place of: their mocks are files, since functions have none.

`command -v NAME` finds a function before a file and prints the name alone, for which `[ -x ... ]` fails.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ANY_NAME = "*"
"""Stands for all names among the commands that code looks up."""

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
    """Return the names of which `text` asks where the command is, and uses the answer.

    `ANY_NAME` is among them where the code computes the name. An answer that goes to `/dev/null` is
    not used: such code asks only whether there is the command.
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
    """Return what a script looks up, and the scripts of its directory that it sources."""
    names: set[str] = set()
    paths = [path]
    for script in paths:
        found, sourced = _read(script, _stamp(script))
        names |= found
        paths += [other for other in sourced if other not in paths]
    return frozenset(names)


def is_looked_up(name: str, names: frozenset[str]) -> bool:
    """Tell whether the command `name` is among those that code looks up."""
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
