"""The script that gathers evidence on a node, and the format of its output.

The script writes nothing on the node, not even a temporary file. So it may run on any existing node,
and it works on a node whose disk is full or read-only. Its output is a compressed stream of frames

    LF nonce blank KIND blank NAME NUL content …

The KIND of the last frame is `end`. The host generates the nonce for this one stream, so the content
of a file cannot be taken for a frame.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.evidence.node_state import FILE_LIMIT_KIB, STAT_FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.evidence.request import EvidenceRequest

#: Programs that the script needs besides the commands of the request and the shell's builtins.
TOOLS = ("timeout", "head", "find", "gzip", "base64")
#: Folders of an administrator's programs, which PATH lacks in some logins by SSH.
_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
_COMMAND_S = 60


class StreamError(ValueError):
    """The stream is incomplete or was not printed by the script."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One item of evidence; `name` is empty for some kinds."""

    kind: str
    name: str
    content: bytes


def render_script(request: EvidenceRequest, nonce: str) -> str:
    """Render the shell script that gathers `request` and prints it compressed, as base64.

    It needs only TOOLS, so that it works on a node on which provisioning failed.
    """
    lines = [
        f'export LC_ALL=C PATH="$PATH":{_PATH}',
        # Without one of these, existing files would seem to be absent.
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
        f'for f in {_pattern(folder)}; do [ ! -d "$f" ] || {condition} || frame unreadable "$f"; done'
        for folder, condition in _openings([*request.files, *request.paths])
    ]
    # Read by head, because files below /proc have no size.
    lines += [
        f'for f in {_pattern(pattern)}; do [ -f "$f" ] || continue; frame file "$f"; '
        f'head -c {FILE_LIMIT_KIB}K "$f" 2>/dev/null || frame unreadable "$f"; done'
        for pattern in request.files
    ]
    lines += [
        # The root always exists: if find does not print it, this is not the find we expect.
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
    """Parse the unpacked output of the script.

    Raises StreamError if it is incomplete.
    """
    start, *parts = stream.split(f"\n{nonce} ".encode())
    if start or not parts or parts[-1] != b"end \0":
        raise StreamError("the stream is incomplete")
    for part in parts[:-1]:
        header, separator, content = part.partition(b"\0")
        if not separator:
            raise StreamError(f"the name of a frame has no end: {header[:80]!r}")
        kind, _, name = header.decode(errors="surrogateescape").partition(" ")
        yield Frame(kind=kind, name=name, content=content)


def _openings(patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each folder that must be accessible to find the patterns' files, and a shell test.

    In a folder without permission, an existing file seems to be absent. The folder is a pattern too,
    if it is below a wildcard; the test is about `$f`.
    """
    is_listed: dict[str, bool] = {}
    for pattern in patterns:
        path = PurePosixPath(pattern)
        for folder, name in zip(path.parents, reversed(path.parts), strict=False):
            has_wildcard = re.search("[*?]", name) is not None
            is_listed[str(folder)] = is_listed.get(str(folder), False) or has_wildcard
    for top, listed in sorted(is_listed.items()):
        yield top, '{ [ -r "$f" ] && [ -x "$f" ]; }' if listed else '[ -x "$f" ]'


def _pattern(pattern: str) -> str:
    """Quote a path pattern except its wildcards."""
    return "".join(
        part if part in {"*", "?"} else shlex.quote(part)
        for part in re.split(r"([*?])", pattern)
        if part
    )
