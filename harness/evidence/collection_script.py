"""The script that gathers evidence on a node, and the format of the script's output.

The script writes nothing on the node, not even a temporary file. So the script can run on any
existing node, even on a node whose disk is full or read-only. The script's output is a compressed
stream of frames

    LF nonce blank KIND blank NAME NUL content …

The KIND of the last frame is `end`. The host generates a new nonce for each stream, so the content
of a file can't be mistaken for a frame.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.evidence.node_state import FILE_LIMIT_KIB, STAT_FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from harness.evidence.request import EvidenceRequest

#: Programs that the script needs in addition to the request's commands and the shell's builtins.
TOOLS = ("timeout", "head", "find", "gzip", "base64")
#: Folders of programs for administrators; PATH lacks these folders in some logins by SSH.
_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
COMMAND_S = 60
_END = "end"
_INCOMPLETE = "the stream is incomplete"
#: The size limit of a header; any path on Linux is shorter.
_HEADER_BYTES = 8192


class StreamError(ValueError):
    """The stream is incomplete or was not printed by the script."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One item of evidence; `name` is empty for some kinds."""

    kind: str
    name: str


def render_script(request: EvidenceRequest, nonce: str, *, stretch: float = 1.0) -> str:
    """Render the shell script that gathers the requested evidence and prints it compressed, as base64.

    The script needs only the programs in TOOLS, so the script works even on a node on which
    provisioning failed. `stretch` multiplies the time limit of each command, because the node's
    clock continues while the host runs other work.
    """
    limit_s = math.ceil(COMMAND_S * stretch)
    lines = [
        f'export LC_ALL=C PATH="$PATH":{_PATH}',
        # Without one of these tools, existing files would seem to be absent.
        f"for tool in {' '.join(TOOLS)}; do",
        'command -v "$tool" >/dev/null || { echo "The node has no \'$tool\'." >&2; exit 1; }; done',
        f'frame() {{ printf \'\\n{nonce} %s %s\\0\' "$1" "$2"; }}',
        "{",
    ]
    for name, argv in request.commands.items():
        lines += [
            f"frame command {shlex.quote(name)}",
            f'timeout {limit_s} {shlex.join(argv)} 2>&1 </dev/null; frame exit "$?"',
        ]
    lines += [
        f'for f in {_pattern(folder)}; do [ ! -d "$f" ] || {condition} || frame unreadable "$f"; done'
        for folder, condition in _openings([*request.files, *request.paths])
    ]
    # `head` reads the files, because files below /proc have no size.
    lines += [
        f'for f in {_pattern(pattern)}; do [ -f "$f" ] || continue; frame file "$f"; '
        f'head -c {FILE_LIMIT_KIB}K "$f" 2>/dev/null || frame unreadable "$f"; done'
        for pattern in request.files
    ]
    lines += [
        # The root always exists: if find does not print it, find does not work as expected.
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


def parse_stream(pieces: Iterable[bytes], nonce: str) -> Iterator[Frame | bytes]:
    """Parse the script's unpacked output, which is the concatenation of `pieces`.

    Yield each frame, and then the frame's content in pieces. Raises StreamError if the stream is
    incomplete.
    """
    mark = f"\n{nonce} ".encode()
    buffer = bytearray()
    # The frame whose content is being read; None while a header is being read.
    frame: Frame | None = None
    has_begun = False
    for piece in pieces:
        buffer += piece
        while True:
            if frame is None:
                if not has_begun and len(buffer) >= len(mark):
                    has_begun = _begins(buffer, mark)
                frame = _header(buffer, mark) if has_begun else None
                if frame is None:
                    break
                yield frame
            at = buffer.find(mark)
            # Keep bytes that may be the beginning of a mark until the rest of the mark arrives.
            content = bytes(buffer[: at if at >= 0 else max(len(buffer) - len(mark) + 1, 0)])
            del buffer[: len(content)]
            if content:
                yield content
            if at < 0:
                break
            del buffer[: len(mark)]
            if frame.kind == _END:
                raise StreamError(_INCOMPLETE)
            frame = None
    if frame is None or frame != Frame(kind=_END, name="") or buffer:
        raise StreamError(_INCOMPLETE)


def _begins(buffer: bytearray, mark: bytes) -> bool:
    if not buffer.startswith(mark):
        raise StreamError(_INCOMPLETE)
    del buffer[: len(mark)]
    return True


def _header(buffer: bytearray, mark: bytes) -> Frame | None:
    """Remove a frame's kind and name from the buffer and return both, or None if either is incomplete."""
    end = buffer.find(b"\0")
    following = buffer.find(mark)
    limit = len(buffer) if end < 0 else end
    if 0 <= following < limit or limit > _HEADER_BYTES:
        raise StreamError(f"the name of a frame has no end: {bytes(buffer[:80])!r}")
    if end < 0:
        return None
    kind, _, name = buffer[:end].decode(errors="surrogateescape").partition(" ")
    del buffer[: end + 1]
    return Frame(kind=kind, name=name)


def _openings(patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each folder that must be accessible to find `patterns`, and a shell test of the folder.

    In a folder that the user cannot access, an existing file seems to be absent. A folder below a
    wildcard is yielded as a pattern. The shell test checks whether the folder in `$f` is
    accessible.
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
    """Quote a path pattern for the shell, except the wildcards in the pattern."""
    return "".join(
        part if part in {"*", "?"} else shlex.quote(part)
        for part in re.split(r"([*?])", pattern)
        if part
    )
