"""Which lines of a build's log are reported while the build runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import pytest

from harness.bench.time_to_gpu.build_progress import build_progress
from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.machine.channels.guest import Guest

_LIMIT_S = 20.0


class LoggingGuest:
    """A fake guest: each query returns the next of `lines`, and the last line is returned again."""

    def __init__(self, *lines: str | Exception) -> None:
        self._lines = list(lines)
        self.is_read = threading.Event()

    def output_of(self, *argv: str) -> str:
        assert argv[:2] == ("sh", "-c")
        if len(self._lines) == 1:
            self.is_read.set()
        line = self._lines[0] if len(self._lines) == 1 else self._lines.pop(0)
        if isinstance(line, Exception):
            raise line
        return line


def told_by(guest: LoggingGuest) -> list[str]:
    told: list[str] = []
    with build_progress(cast("Guest", guest), told.append, every_s=0.001):
        assert guest.is_read.wait(_LIMIT_S)
        guest.is_read.clear()
        # After two queries of the same line, the line has been reported.
        assert guest.is_read.wait(_LIMIT_S)
    return told


def test_each_new_line_is_reported_once() -> None:
    guest = LoggingGuest("make.log: CC a.o", "make.log: CC a.o", "make.log: CC b.o\n")

    assert told_by(guest) == ["make.log: CC a.o", "make.log: CC b.o"]


def test_guest_is_asked_again_after_a_failed_query() -> None:
    guest = LoggingGuest(HarnessError("No answer."), "", "make.log: CC a.o")

    assert told_by(guest) == ["make.log: CC a.o"]


def test_no_progress_is_reported_for_a_short_command() -> None:
    told: list[str] = []

    with build_progress(cast("Guest", LoggingGuest("line")), told.append):
        pass

    assert told == []


def test_progress_reports_end_when_the_command_raises_an_error() -> None:
    with (
        pytest.raises(KeyError),
        build_progress(cast("Guest", LoggingGuest("line")), lambda _: None, every_s=0.001),
    ):
        raise KeyError
    assert "build-progress" not in [thread.name for thread in threading.enumerate()]
