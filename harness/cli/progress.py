"""Shows the progress of a command's preparations on stderr."""

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING

from harness.progress.board import Board
from harness.progress.display import Display, PlainLines

if TYPE_CHECKING:
    from harness.progress import ProgressEvent


def show_event(event: ProgressEvent) -> None:
    """Print a progress event to stderr, separate from the command's output."""
    _display()(event)


@functools.cache
def _display() -> Display:
    # The console of a machine that a person uses is not progress of the command.
    return Display(PlainLines(_write), Board(tells_running=False))


class ElapsedLog:
    """Prints progress lines to stderr, with the seconds since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, sentence: str) -> None:
        elapsed = time.monotonic() - self._started
        # Write each line at once, since several threads write.
        _write(f"{elapsed:6.1f} s  {sentence}\n")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
