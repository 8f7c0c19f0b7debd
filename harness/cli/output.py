"""Makes the output of `harness` safe to show, and limits the length of error messages."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from typing import TYPE_CHECKING, TextIO, cast

from harness.errors import MESSAGE_BYTES, EvidencedError
from harness.provisioning.command import CommandError
from harness.settings import Settings
from harness.visible_text import VisibleStream, is_longer, shortened, visible

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Commands whose output is not escaped. `completion` and `migrate` print a program; `replay`
#: prints a console's output and removes control sequences itself.
_VERBATIM = frozenset({"completion", "migrate", "replay"})
_MESSAGES = "messages"


def open_closed_streams() -> None:
    """Open the null device as each standard stream that the caller closed, such as by `>&-`.

    Otherwise the next file that this process opens would get the closed stream's descriptor number,
    and child processes would write their output to that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is the stream's number.
            free = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(free, "w" if number else "r", encoding="utf-8"))


def drop_unwritten_text() -> None:
    """Drop text that can't be written to stdout or stderr, to keep Python from exiting with code 120."""
    for number, stream in enumerate((sys.stdout, sys.stderr), 1):
        try:
            stream.flush()
        except OSError:  # noqa: PERF203 - there are two streams
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


@contextlib.contextmanager
def guarded(command: str) -> Iterator[None]:
    """Escape unprintable characters in the command's output while the context is open.

    Output of shells, and of machines' consoles and logs, is not escaped, because this output is
    written directly to the descriptors.
    """
    with contextlib.ExitStack() as open_streams:
        if command not in _VERBATIM:
            open_streams.enter_context(contextlib.redirect_stdout(_stream(sys.stdout)))
        open_streams.enter_context(contextlib.redirect_stderr(_stream(sys.stderr)))
        yield


def _stream(file: TextIO) -> TextIO:
    return cast("TextIO", VisibleStream(file, has_colours=file.isatty()))


def print_error(error: Exception) -> None:
    """Print an error as a sentence; the whole text of a long error is saved in the cache."""
    if isinstance(error, EvidencedError):
        text = error.sentence
    else:
        text = visible(error.whole if isinstance(error, CommandError) else _sentence(error))
    rest = ""
    if is_longer(text, MESSAGE_BYTES):
        try:
            whole = _kept(text)
        except OSError:
            rest = "The whole text could not be saved."
        else:
            rest = f"The whole text is in '{whole}'."
            if isinstance(error, EvidencedError):
                error.whole_text = whole
    shown = (
        str(error)
        if isinstance(error, EvidencedError)
        else shortened(text, MESSAGE_BYTES, rest=rest)
    )
    print_message(shown)


def print_message(text: str) -> None:
    """Print a message to stderr; ignore an error of the write, such as a closed pipe or a full disk."""
    with contextlib.suppress(OSError):
        print(f"harness: {text}", file=sys.stderr, flush=True)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"'{error.filename}': {error.strerror}."
    return str(error)


def _kept(text: str) -> Path:
    content = text.encode(errors="backslashreplace")
    folder = Settings().cache / _MESSAGES
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(content).hexdigest()[:12]}.txt"
    path.write_bytes(content)
    return path
