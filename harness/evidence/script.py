"""The script that looks at a node, and what it prints: frames in one compressed stream.

Nothing is written on the node, not even a temporary file, so that a node of somebody else's may be
looked at, and one whose disk is full or read-only still tells. The stream is

    LF nonce blank KIND blank NAME NUL content …

again and again, with `end` as the last KIND. The nonce is the host's, made for this one stream, and
so no file's content can pass for a frame.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.evidence.nodestate import STAT_FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.evidence.request import Request

#: What the script runs beside the commands of the request; the rest of it is the shell's own.
TOOLS = ("timeout", "head", "find", "gzip", "base64")
#: Where programs lie that are an administrator's: a login by SSH may leave these out.
_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
_FILE_LIMIT_KIB = 4096
_COMMAND_S = 60


class StreamError(ValueError):
    """What came is not what the script prints, or not all of it."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One thing that was gathered; `name` is empty for some kinds."""

    kind: str
    name: str
    content: bytes


def render_script(request: Request, nonce: str) -> str:
    """Render the shell script that gathers `request`, and prints it compressed and as base64.

    It needs TOOLS alone, so that it also works on a node on which nothing else went well.
    """
    lines = [
        f'export LC_ALL=C PATH="$PATH":{_PATH}',
        # Without one of these, much would seem to be absent that is there.
        f"for tool in {' '.join(TOOLS)}; do",
        'command -v "$tool" >/dev/null || { echo "The node has no \'$tool\'." >&2; exit 1; }; done',
        f'frame() {{ printf \'\\n{nonce} %s %s\\0\' "$1" "$2"; }}',
        "{",
    ]
    for name, argv in request.commands.items():
        lines += [
            f"frame command {shlex.quote(name)}",
            f'timeout {_COMMAND_S} {shlex.join(argv)} 2>&1 </dev/null; frame exit "$?"',
        ]
    lines += [
        f"[ ! -d {shlex.quote(folder)} ] || {condition} || frame unreadable {shlex.quote(folder)}"
        for folder, condition in _openings([*request.files, *request.paths])
    ]
    # Read by head and not copied: files below /proc have no size to go by.
    lines += [
        f'for f in {_pattern(pattern)}; do [ -f "$f" ] || continue; frame file "$f"; '
        f'head -c {_FILE_LIMIT_KIB}K "$f" 2>/dev/null || frame unreadable "$f"; done'
        for pattern in request.files
    ]
    lines += [
        # The root is there always: where even that is not told of, find is not the one we know.
        "set -- /",
        (
            f"for f in {' '.join(map(_pattern, request.paths))}; do "
            '[ -e "$f" ] || [ -L "$f" ] || continue; set -- "$@" "$f"; done'
        ),
        "frame paths ''",
        f'find "$@" -maxdepth 0 -printf {shlex.quote(STAT_FORMAT)}',
        "frame end ''",
        "} | gzip -c | base64",
    ]
    return "\n".join(lines) + "\n"


def parse_stream(stream: bytes, nonce: str) -> Iterator[Frame]:
    """Take apart what the script printed, once unpacked.

    Raises StreamError where it is not whole.
    """
    start, *parts = stream.split(f"\n{nonce} ".encode())
    if start or not parts or parts[-1] != b"end \0":
        raise StreamError("the stream is not whole")
    for part in parts[:-1]:
        header, separator, content = part.partition(b"\0")
        if not separator:
            raise StreamError(f"a frame has no end of its name: {header[:80]!r}")
        kind, _, name = header.decode(errors="surrogateescape").partition(" ")
        yield Frame(kind=kind, name=name, content=content)


def _openings(patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each folder that has to be open for what patterns name to be seen, and its test.

    In a closed one a file seems to be absent, though it may be there.
    """
    listed = {_folder_of(pattern) for pattern in patterns if re.search("[*?]", pattern)}
    tops = {_folder_of(pattern) for pattern in patterns}
    for folder in sorted({each for top in tops for each in (top, *top.parents)}):
        quoted = shlex.quote(str(folder))
        is_open = f"[ -x {quoted} ]"
        yield str(folder), f"{{ [ -r {quoted} ] && {is_open}; }}" if folder in listed else is_open


def _folder_of(pattern: str) -> PurePosixPath:
    """Return the folder in which a path lies; of a pattern, the one with its first wildcard."""
    literal = re.split("[*?]", pattern)[0]
    return PurePosixPath(literal[: literal.rindex("/")] or "/")


def _pattern(pattern: str) -> str:
    """Quote everything of a path pattern but its wildcards."""
    return "".join(
        part if part in {"*", "?"} else shlex.quote(part)
        for part in re.split(r"([*?])", pattern)
        if part
    )
