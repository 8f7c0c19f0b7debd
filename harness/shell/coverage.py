"""Finds the lines of shell code that ran, in bash's trace (`set -x`).

Bash writes the trace to a separate descriptor, so stdout, stderr and verdicts do not change.
`harness.shell.commands_of` decides which lines of a script are commands, and which commands a
trace shows.
"""

from __future__ import annotations

import functools
import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


class Tier(Enum):
    """The kind of test that ran a line of shell code."""

    MOCKED = "unit test"
    MACHINE = "machine"


class Place(NamedTuple):
    """The position of a command in the trace: its line and its nesting.

    `depth` is the number of functions and sourced files around the command. `level` is the number
    of command substitutions, `eval` calls and sourced files around the command, as the trace shows.
    """

    line: int
    depth: int
    level: int


Hits = dict[str, set[Place]]
"""The places that ran. The key is the absolute path of their script."""

_TRACED = re.compile(
    r"^(\++)\x1e(\d{1,9})\x1f([^\x1e\x1f]*)\x1f(\d{1,9})\x1f([^\x1e]*)\x1e", re.MULTILINE
)


_SHEBANG = re.compile(rb"#!\s*(?:/usr)?/bin/(?:env\s+)?bash\b")
_USES_TRACE = re.compile(r"\bset\s+(?:[-+]\w+\s+)*[-+]\w*x|xtrace")


def scripts_in(sources: Iterable[Path], *, unread: list[Path] | None = None) -> Iterator[Path]:
    """Yield the files at and below `sources` with the suffix `.sh` or `.bash`, or a bash shebang.

    Files that cannot be read are left out, and added to `unread`.
    """
    unread = [] if unread is None else unread
    for source in sources:
        inside = source.rglob("*") if source.is_dir() else [source]
        yield from (path.resolve() for path in sorted(inside) if _is_script(path, unread))


def _is_script(path: Path, unread: list[Path]) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _SHEBANG.match(file.read(64)) is not None or path.suffix in {".sh", ".bash"}
    except OSError:
        unread.append(path)
        return False


def uses_trace(text: str) -> bool:
    """Return whether shell code switches bash's trace (`set -x`) on or off."""
    return _USES_TRACE.search(text) is not None


@functools.lru_cache(maxsize=8)
def any_uses_trace(sources: tuple[Path, ...]) -> bool:
    """Return whether a script at or below `sources` switches bash's trace on or off."""
    return any(uses_trace(path.read_text(errors="replace")) for path in scripts_in(sources))


def parse_trace(
    trace: str, cwd: Path, sources: Iterable[Path], *, copies: Mapping[str, Path] | None = None
) -> Hits:
    """Return the places in files below `sources` that a shell's trace shows.

    The shell ran in `cwd`.

    `copies` maps the path of a script's copy to the original script. A relative path in a trace
    entry is relative to the directory in which bash wrote the entry. If a relative path leads to no
    file, the path means the same file as the same path in an earlier trace entry.
    """
    # before Python 3.13, resolving a link to itself raises RuntimeError
    places = [source.resolve() for source in sources if source.exists()]
    hits: Hits = {}
    known: dict[tuple[str, str], str | None] = {}
    latest: dict[str, str | None] = {}
    for nesting, depth, name, line, folder in _TRACED.findall(trace):
        key = (name, "" if name.startswith("/") else folder)
        if key not in known:
            paths = (copies or {}).get(name, cwd / folder / name), cwd / name
            known[key] = next(filter(None, (_covered(path, places) for path in paths)), None)
        path_name = latest[name] = known[key] or latest.get(name)
        if path_name is not None:
            found = hits.setdefault(path_name, set())
            found.add(Place(int(line), int(depth), len(nesting)))
    return hits


def _covered(path: Path, places: Iterable[Path]) -> str | None:
    """Return the resolved `path`, or None if `path` is not a file at or below one of `places`."""
    try:
        path = path.resolve()
        inside = any(place == path or place in path.parents for place in places)
        return str(path) if inside and path.is_file() else None
    except (OSError, ValueError, RuntimeError):
        # Code under test may write any path to the trace, such as a link to itself (RuntimeError).
        return None


def merge(hits: Hits, more: Mapping[str, Iterable[Iterable[int]]]) -> None:
    """Add the places in `more` to `hits`."""
    for path, places in more.items():
        hits.setdefault(path, set()).update(Place(*place) for place in places)
