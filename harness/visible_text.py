r"""Makes text from guests, registries, files and shell code safe to show.

Terminals obey control characters, bidirectional marks reorder the text that people read, XML
can't contain some characters, and a lone surrogate can't be encoded. Each such character is shown
as Python writes it in a string: `\x1b`, `\u202e`, `\udce9`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

_SUSPECT = re.compile(r"[^\n\t -~]")
_PASSWORD = re.compile(r"\b(https?:/*|[a-z][a-z0-9+.-]*:/+).*@", re.DOTALL)
#: Sequences for colours and other attributes of text.
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def visible(text: str) -> str:
    """Return the text with each unprintable character as an escape, except line breaks and tabs.

    The line ends of a serial console, CR and LF, become LF.
    """
    return _SUSPECT.sub(_spelled, text.replace("\r\n", "\n"))


def visible_line(text: str) -> str:
    """Return the text as one line, with each unprintable character as an escape."""
    return visible(" ".join(text.split()))


def without_password(url: str) -> str:
    """Return a URL, or text with one URL, without the user and the password of the URL.

    In a malformed URL, `/`, `?` and `#` in a password may be unescaped, so everything up to the last
    `@` is left out.
    """
    return _PASSWORD.sub(r"\1…@", url)


def is_longer(text: str, most_bytes: int) -> bool:
    """Return whether a text has more than `most_bytes` bytes of UTF-8."""
    if len(text) * 4 <= most_bytes:
        return False
    return len(text) > most_bytes or len(text.encode(errors="backslashreplace")) > most_bytes


def shortened(text: str, most_bytes: int, *, rest: str = "") -> str:
    """Return a text of at most `most_bytes` bytes of UTF-8; a longer text loses its middle part.

    A line with the length of the whole text, and with the sentence `rest`, replaces the middle part.
    """
    if not is_longer(text, most_bytes):
        return text
    raw = text.encode(errors="backslashreplace")
    note = f"\n[{len(raw)} bytes in all; the middle part is left out here.{rest and ' '}{rest}]\n"
    room = max(most_bytes - len(note.encode()), 0)
    first, last = raw[: room - room // 3], raw[len(raw) - room // 3 :]
    return first.decode(errors="ignore") + note + last.decode(errors="ignore")


def _spelled(match: re.Match[str]) -> str:
    char = match[0]
    if char.isprintable():
        return char
    return char.encode("unicode_escape").decode()


class VisibleStream:
    """A text file that escapes unprintable characters, except colours if the terminal supports them.

    All attributes except `write` and `writelines` are attributes of the wrapped file. A character
    that the file's encoding lacks is written as an escape, as in a Python string literal.
    """

    def __init__(self, file: TextIO, *, has_colours: bool) -> None:
        self._file = file
        self._has_colours = has_colours

    def write(self, text: str) -> int:
        # Text that replaces its line, such as a progress display, begins with a carriage return.
        begin = "\r" if text.startswith("\r") else ""
        parts = _COLOUR.split(text[len(begin) :]) if self._has_colours else [text[len(begin) :]]
        shown = begin + "".join(part if at % 2 else visible(part) for at, part in enumerate(parts))
        try:
            self._file.write(shown)
        except UnicodeEncodeError:
            self._file.write(shown.encode("ascii", "backslashreplace").decode())
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)
