"""Shows what machines do while tests run: on a terminal in rows that change, elsewhere as lines with times.

With xdist, workers send it to the process that has the terminal.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from xdist.workermanage import WorkerController

    from harness.progress import ProgressEvent, ProgressListener
    from harness.progress.display import Display, LiveRegion, Surface
    from harness.progress.relay import Receiver, Sender

#: The name under which the plugin registers its ProgressReporter.
PROGRESS = "harness-progress"

_CARRIED = "harness_progress"


class ProgressReporter:
    """Shows progress, or sends it to the process that does; nothing is opened before the first event."""

    def __init__(self, config: pytest.Config, *, is_ci: bool) -> None:
        self._config = config
        self._is_ci = is_ci
        self._open = contextlib.ExitStack()
        self._listener: ProgressListener | None = None
        self._region: LiveRegion | None = None
        self._receiver: Receiver | None = None
        # While a test runs, pytest's capture has the descriptors 1 and 2.
        self._errors = os.dup(2)
        self._open.callback(os.close, self._errors)

    def listener(self) -> ProgressListener:
        """Return what takes the events of this process."""
        if self._listener is None:
            place = getattr(self._config, "workerinput", {}).get(_CARRIED)
            self._listener = self._display() if place is None else self._sender(place)
        return self._listener

    def _sender(self, place: str) -> Sender:
        from harness.progress.relay import Sender  # noqa: PLC0415 - most runs have no machines

        return self._open.enter_context(
            contextlib.closing(Sender(place, self._config.workerinput["workerid"]))  # type: ignore[attr-defined]
        )

    def _display(self) -> Display:
        from harness.progress.board import Board  # noqa: PLC0415 - as above
        from harness.progress.display import Display  # noqa: PLC0415

        return self._open.enter_context(contextlib.closing(Display(self._surface(), Board())))

    def _surface(self) -> Surface:
        from harness.progress.display import LiveRegion, PlainLines  # noqa: PLC0415 - as above

        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is None:
            return PlainLines(partial(_write_all, self._errors))
        if not self._is_live(reporter):
            return PlainLines(partial(_write_all, self._errors), _OpenLine(reporter))
        self._region = LiveRegion(partial(_write_all, self._errors))
        self._open.enter_context(_routed(reporter, self._region))
        return self._region

    def _is_live(self, reporter: pytest.TerminalReporter) -> bool:
        """Return whether rows that change can be shown; what tests print themselves would overwrite them."""
        return (
            bool(reporter.isatty)
            and os.isatty(self._errors)
            and not self._is_ci
            and os.environ.get("TERM", "dumb") != "dumb"
            and self._config.getoption("capture") != "no"
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Let a worker of xdist send its events here."""
        if self._receiver is None:
            from harness.progress.relay import Receiver  # noqa: PLC0415 - as above

            folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="harness-"))
            self._receiver = Receiver(Path(folder), self._take)
            self._open.enter_context(contextlib.closing(self._receiver))
        node.workerinput[_CARRIED] = self._receiver.place

    def _take(self, event: ProgressEvent, worker: str) -> None:
        cast("Display", self.listener())(event, worker)

    def pytest_enter_pdb(self) -> None:
        self.pause()

    def pytest_leave_pdb(self) -> None:
        self.go_on()

    def pause(self) -> None:
        """Leave the terminal to a person."""
        if self._region is not None:
            self._region.pause()

    def go_on(self) -> None:
        """Show progress again."""
        if self._region is not None:
            self._region.go_on()

    # Before the summary.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self.pause()

    def pytest_unconfigure(self) -> None:
        self._open.close()


def progress_of(config: pytest.Config) -> ProgressReporter:
    """Return the plugin of a run."""
    plugin = config.pluginmanager.getplugin(PROGRESS)
    assert isinstance(plugin, ProgressReporter)  # noqa: S101 - the plugin registers it
    return plugin


@contextlib.contextmanager
def terminal_left(config: pytest.Config) -> Iterator[None]:
    """Leave the terminal to a person, in this context."""
    progress = progress_of(config)
    progress.pause()
    try:
        yield
    finally:
        progress.go_on()


class _OpenLine:
    """Says whether pytest has left the terminal amid a line since this was asked last."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        # All that the reporter prints goes through this writer, which has no public name.
        self._writer = reporter._tw  # noqa: SLF001
        self._seen = 0

    def __call__(self) -> bool:
        width = self._writer.width_of_current_line
        is_open = width not in (0, self._seen)
        self._seen = width
        return is_open


def _write_all(descriptor: int, text: str) -> None:
    rest = text.encode()
    # A terminal that is gone must not end a test.
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(descriptor, rest) :]


@contextlib.contextmanager
def _routed(reporter: pytest.TerminalReporter, region: LiveRegion) -> Iterator[None]:
    """Let the rows make room for whatever pytest writes.

    Its reporter has no public way to that: all of its output goes through the file of this writer.
    """
    writer = reporter._tw  # noqa: SLF001
    file = writer._file  # noqa: SLF001
    writer._file = cast("TextIO", _RoutedFile(file, region.writing))  # noqa: SLF001
    try:
        yield
    finally:
        writer._file = file  # noqa: SLF001


class _RoutedFile:
    """A file of which each write happens while the rows are away."""

    def __init__(
        self, file: TextIO, writing: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self._file = file
        self._writing = writing

    def write(self, text: str) -> int:
        with self._writing():
            written = self._file.write(text)
            # Else the rows are drawn before it arrives.
            self._file.flush()
        return written

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)
