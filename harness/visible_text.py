r"""Makes text of guests, registries, files and shell code safe to show.

Terminals obey control characters, bidirectional marks reorder what people read, XML has no place for some
characters, and a lone surrogate can't be encoded. Each of them is shown as Python writes it in a string:
`\x1b`, `\u202e`, `\udce9`.
"""

from __future__ import annotations

import re

_SUSPECT = re.compile(r"[^\n\t -~]")
#: What `str.isprintable` refuses although it only separates words.
_BLANKS = "\u00a0\u202f\u3000"


def visible(text: str) -> str:
    """Return the text with its lines and tabs, and every other character that is not printable visible.

    A line may end with CR and LF, as on a serial console.
    """
    return _SUSPECT.sub(_spelled, text.replace("\r\n", "\n"))


def visible_line(text: str) -> str:
    """Return the text as one line, with each character that is not printable visible."""
    return visible(" ".join(text.split()))


def shortened(text: str, most_bytes: int, *, rest: str = "") -> str:
    """Return a text of at most `most_bytes` bytes of UTF-8: the first and the last part of a longer one.

    Between the parts is a line that says how much is left out, followed by the sentence `rest`.
    """
    raw = text.encode(errors="backslashreplace")
    if len(raw) <= most_bytes:
        return text
    note = f"\n[{len(raw)} bytes in all; what is between is left out here.{rest and ' '}{rest}]\n"
    room = max(most_bytes - len(note.encode()), 0)
    first, last = raw[: room - room // 3], raw[len(raw) - room // 3 :]
    return first.decode(errors="ignore") + note + last.decode(errors="ignore")


def _spelled(match: re.Match[str]) -> str:
    char = match[0]
    if char.isprintable() or char in _BLANKS:
        return char
    return char.encode("unicode_escape").decode()
