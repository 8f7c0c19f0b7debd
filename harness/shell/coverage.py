"""Lines of shell code that ran, from bash's own trace; no debugger, no wrapper around the code.

The trace goes to a descriptor of its own, so streams and verdicts stay what they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Hits = dict[str, set[int]]
"""By absolute path, the lines that ran."""

_TRACED = re.compile(r"^\++hx:(.+?):(\d+):", re.MULTILINE)
_NO_CODE = re.compile(
    r"(?:#.*|\{|\}|\(|\)|fi|done|esac|else|then|do|;;|;&|;;&|[\w-]+\s*\(\)\s*\{?"
    r"|function\s+[\w-]+\s*(?:\(\))?\s*\{?|\S+\)|in)?\s*(?:#.*)?\Z"
)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")


def parse_trace(trace: str, cwd: Path, sources: Iterable[Path]) -> Hits:
    """Return the lines of files below `sources` that the trace of a shell in `cwd` tells of."""
    places = [source.resolve() for source in sources]
    hits: Hits = {}
    known: dict[str, str | None] = {}
    for name, line in _TRACED.findall(trace):
        if name not in known:
            path = (cwd / name).resolve()
            inside = any(place == path or place in path.parents for place in places)
            known[name] = str(path) if inside else None
        path_name = known[name]
        if path_name is not None:
            hits.setdefault(path_name, set()).add(int(line))
    return hits


def merge(hits: Hits, more: Mapping[str, Iterable[int]]) -> None:
    """Add `more` to `hits`."""
    for path, lines in more.items():
        hits.setdefault(path, set()).update(lines)


def code_lines(text: str) -> set[int]:
    """Return the lines of a script that bash would trace when it ran them.

    A command that spans lines counts once, at its first; what heredocs hold does not count.
    """
    found: set[int] = set()
    end_mark = ""
    continued = False
    for number, line in enumerate(text.splitlines(), start=1):
        if end_mark:
            end_mark = "" if line.strip() == end_mark else end_mark
            continue
        if not continued and not _NO_CODE.match(line.strip()):
            found.add(number)
        heredoc = _HEREDOC.search(line)
        end_mark = heredoc[2] if heredoc and "<<<" not in line else ""
        continued = line.rstrip().endswith(("\\", "|", "&&", "||"))
    return found


def render_lcov(hits: Hits) -> str:
    """Render an lcov tracefile; a line counts as run once, however often it was."""
    parts: list[str] = []
    for path in sorted(hits):
        ran = hits[path]
        lines = sorted(code_lines(Path(path).read_text(errors="replace")) | ran)
        parts.append(f"SF:{path}")
        parts.extend(f"DA:{line},{int(line in ran)}" for line in lines)
        parts.extend([f"LF:{len(lines)}", f"LH:{len(ran)}", "end_of_record"])
    return "\n".join([*parts, ""])
