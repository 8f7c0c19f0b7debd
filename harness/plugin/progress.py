"""Shows what machines do during tests: on a terminal in changing rows, elsewhere as lines.

With xdist, workers send their events to the process that has the terminal.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError
from harness.lease import temporary_folder
from harness.progress.board import Board
from harness.progress.display import Display, LiveRegion, PlainLines
from harness.progress.relay import Receiver, Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from xdist.workermanage import WorkerController

    from harness.progress import ProgressEvent, ProgressListener
    from harness.progress.display import Surface

#: The name under which the plugin registers its ProgressReporter.
PROGRESS = "harness-progress"

_CARRIED = "harness_progress"
#: The size of a terminal that does not report its size, as in some containers.
_USUAL_SIZE = (80, 24)


class ProgressReporter:
    """Shows progress, or sends events to the process that shows progress; is idle before the first event."""

    def __init__(self, config: pytest.Config, *, is_ci: bool) -> None:
        self._config = config
        self._is_ci = is_ci
        self._open = contextlib.ExitStack()
        self._listener: ProgressListener | None = None
        self._shown: Display | None = None
        self._pauses = 0
        self._ended_workers: set[str] = set()
        self._is_live = False
        self._receiver: Receiver | None = None
        # While a test runs, pytest's capture replaces the descriptors 1 and 2.
        self._errors = os.dup(2)
        self._open.callback(os.close, self._errors)

    def listener(self) -> ProgressListener:
        """Return the listener that receives this process's events."""
        if self._listener is None:
            place = getattr(self._config, "workerinput", {}).get(_CARRIED)
            self._listener = self._display if place is None else self._sender(place)
        return self._listener

    def _sender(self, place: str) -> Sender:
        return self._open.enter_context(
            contextlib.closing(Sender(place, self._config.workerinput["workerid"]))  # type: ignore[attr-defined]
        )

    @property
    def _display(self) -> Display:
        if self._shown is None:
            shown = Display(self._surface(), Board())
            # The display may start while a debugger has paused progress.
            for _ in range(self._pauses):
                shown.pause()
            self._shown = self._open.enter_context(contextlib.closing(shown))
            # A worker may have ended before its first event is shown, even while this loop runs.
            for worker in tuple(self._ended_workers):
                shown.forget(worker)
        return self._shown

    def _surface(self) -> Surface:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        write = partial(_write_all, self._errors)
        if reporter is None:
            return PlainLines(write)
        self._is_live = self._can_be_live(reporter)
        if not self._is_live:
            return PlainLines(write, _OpenLine(reporter))
        region = LiveRegion(write, partial(_size_of, self._errors), has_colours=reporter.hasmarkup)
        self._open.enter_context(_routed(reporter, region))
        return region

    def _can_be_live(self, reporter: pytest.TerminalReporter) -> bool:
        """Return whether changing rows can be shown: never if tests print to the terminal."""
        return (
            bool(reporter.isatty)
            and os.isatty(self._errors)
            and not self._is_ci
            and os.environ.get("TERM", "dumb") != "dumb"
            # With any other value of `--capture`, tests or their child processes print to the
            # terminal.
            and self._config.getoption("capture", "no") == "fd"
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        """Let a worker of xdist send its events to this process."""
        if self._receiver is None:
            try:
                folder = self._open.enter_context(temporary_folder("harness-progress"))
                self._receiver = Receiver(folder, self._take)
            except (OSError, HarnessError):
                # Without a receiver, the worker prints lines itself.
                return
            self._open.enter_context(contextlib.closing(self._receiver))
        node.workerinput[_CARRIED] = self._receiver.place

    def _take(self, event: ProgressEvent, worker: str) -> None:
        self._display(event, worker)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Forget the activities of a worker that has ended, or crashed."""
        worker = node.workerinput["workerid"]
        self._ended_workers.add(worker)
        if self._shown is not None:
            self._shown.forget(worker)

    def pytest_enter_pdb(self) -> None:
        self.pause()

    def pytest_leave_pdb(self) -> None:
        self.go_on()

    def pause(self) -> None:
        """Hide progress, so that a person can use the terminal; call `go_on` after each call of `pause`."""
        self._pauses += 1
        if self._shown is not None:
            self._shown.pause()

    def go_on(self) -> None:
        """Show progress again after a call of `pause`."""
        self._pauses -= 1
        if self._shown is not None:
            self._shown.go_on()

    # The changing rows must not stay on the screen beside the summary.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._shown is not None and self._is_live:
            self._shown.close()

    def pytest_unconfigure(self) -> None:
        self._open.close()


def progress_of(config: pytest.Config) -> ProgressReporter:
    """Return the ProgressReporter of a run."""
    plugin = config.pluginmanager.getplugin(PROGRESS)
    assert isinstance(plugin, ProgressReporter)  # noqa: S101 - the plugin registers it
    return plugin


@contextlib.contextmanager
def terminal_left(config: pytest.Config) -> Iterator[None]:
    """Hide progress while the context lasts, so that a person can use the terminal."""
    progress = progress_of(config)
    progress.pause()
    try:
        yield
    finally:
        progress.go_on()


class _OpenLine:
    """Returns whether pytest has begun a line since the last call, and has not ended this line."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        # The reporter writes all its output through this writer, which has no public name.
        self._writer = reporter._tw  # noqa: SLF001
        self._seen = 0

    def __call__(self) -> bool:
        width = self._writer.width_of_current_line
        is_open = width not in (0, self._seen)
        self._seen = width
        return is_open


def _size_of(descriptor: int) -> tuple[int, int]:
    """Return a terminal's columns and lines; `shutil` would read the descriptor that pytest captures."""
    with contextlib.suppress(OSError):
        size = os.get_terminal_size(descriptor)
        if size.columns and size.lines:
            return size.columns, size.lines
    return _USUAL_SIZE


def _write_all(descriptor: int, text: str) -> None:
    rest = text.encode(errors="replace")
    # A write to a closed terminal must not end a test.
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(descriptor, rest) :]


@contextlib.contextmanager
def _routed(reporter: pytest.TerminalReporter, region: LiveRegion) -> Iterator[None]:
    """Hide the rows while pytest writes.

    pytest's terminal reporter has no public hook for a write, so this function replaces the file of
    the reporter's writer.
    """
    writer = reporter._tw  # noqa: SLF001
    file = writer._file  # noqa: SLF001
    writer._file = cast("TextIO", _RoutedFile(file, region.writing))  # noqa: SLF001
    try:
        yield
    finally:
        writer._file = file  # noqa: SLF001


class _RoutedFile:
    """Passes text on to a file; hides the rows during each write."""

    def __init__(
        self, file: TextIO, writing: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self._file = file
        self._writing = writing

    def write(self, text: str) -> int:
        with self._writing():
            written = self._file.write(text)
            # Without the flush, the rows are drawn before this text arrives.
            self._file.flush()
        return written

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)
