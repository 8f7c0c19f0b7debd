"""Shows progress: on a terminal as rows below pytest's output, elsewhere as lines with times."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from harness.errors import MESSAGE_BYTES
from harness.progress import Stage
from harness.visible_text import shortened, visible, visible_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.progress import ProgressEvent
    from harness.progress.board import Board, Row

_LOOK_S = 1.0
_CLOSE_S = 5.0

#: Erases from the cursor to the end of the screen.
_CLEAR = "\x1b[J"


class Surface(Protocol):
    """An output on which progress is shown."""

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines that are not overwritten later."""
        ...

    def announce(self, lines: Sequence[str]) -> None:
        """Print lines about facts that no row shows. The lines are not overwritten later."""
        ...

    def draw(self, rows: Sequence[Row], now: float) -> None:
        """Show the present activities, in place of the rows that were drawn before."""
        ...

    def clear(self) -> None:
        """Remove the rows."""
        ...


class Display:
    """Shows the events that any thread sends. A thread of the display updates the shown times."""

    def __init__(
        self, surface: Surface, board: Board, clock: Callable[[], float] = time.time
    ) -> None:
        self._surface = surface
        self._clock = clock
        self._board = board
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._pauses = 0
        self._held: list[str] = []
        self._ended: set[str] = set()

    def __call__(self, event: ProgressEvent, worker: str = "") -> None:
        with self._lock:
            if self._is_closed.is_set():
                return
            now = self._clock()
            if event.stage is Stage.PLAN:
                self._surface.announce(_guarded(event).message.splitlines())
                return
            lines = self._board.take(_guarded(event), worker, now)
            if worker in self._ended:
                # The last events of a worker may arrive after the report of its end.
                self._board.forget(worker)
            self._show(lines, now)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="display", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        while not self._is_closed.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Print the lines that are due, and draw the rows again."""
        with self._lock:
            if not self._is_closed.is_set():
                now = self._clock()
                self._show(self._board.due(now), now)

    def _show(self, lines: Sequence[str], now: float) -> None:
        self._held += lines
        if self._pauses:
            return
        if self._held:
            self._surface.print_lines(self._held)
            self._held = []
        self._surface.draw(self._board.rows(now), now)

    def pause(self) -> None:
        """Hide progress, so that a person can use the terminal, until `go_on` is called."""
        with self._lock:
            self._pauses += 1
            self._surface.clear()

    def go_on(self) -> None:
        """Show progress again, and print the lines that became due during the pause."""
        with self._lock:
            self._pauses -= 1
        self.look()

    def forget(self, worker: str) -> None:
        """Stop showing the activities of a worker that has ended."""
        with self._lock:
            self._ended.add(worker)
            self._board.forget(worker)

    def close(self) -> None:
        """End the display. Later events are not shown."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        with self._lock:
            if self._held:
                self._surface.print_lines(self._held)
            self._surface.clear()


def _guarded(event: ProgressEvent) -> ProgressEvent:
    """Remove control characters from the text, which a guest or a registry may have written."""
    return replace(
        event,
        subject=visible_line(event.subject),
        message=visible(shortened(event.message, MESSAGE_BYTES)),
    )


class PlainLines:
    """Writes several lines in one call of `write`.

    `is_line_open` returns whether the last line of the output lacks its newline.
    """

    def __init__(
        self, write: Callable[[str], object], is_line_open: Callable[[], bool] = lambda: False
    ) -> None:
        self._write = write
        self._is_line_open = is_line_open

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines that are not overwritten later."""
        newline = "\n" if self._is_line_open() else ""
        self._write(newline + "".join(f"{line}\n" for line in lines))

    def announce(self, lines: Sequence[str]) -> None:
        """Print lines that are not overwritten later."""
        self.print_lines(lines)

    def draw(self, rows: Sequence[Row], now: float) -> None:
        """Do nothing, since printed lines can't be updated."""

    def clear(self) -> None:
        """Do nothing, since printed lines can't be removed."""


class LiveRegion:
    """Rows below the cursor of a terminal to which pytest also writes.

    pytest must write inside the context `writing`, which hides the rows. `write` writes to the terminal
    at once, and `size` returns the terminal's columns and lines.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        size: Callable[[], tuple[int, int]],
        *,
        has_colours: bool = True,
    ) -> None:
        self._write = write
        self._size = size
        self._has_colours = has_colours
        self._lock = threading.RLock()
        self._height = 0

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print nothing, since the rows show the same facts."""

    def announce(self, lines: Sequence[str]) -> None:
        """Print lines below the cursor's line, since that line may contain output of pytest."""
        with self.writing():
            self._write("".join(f"\r\n{line}" for line in lines) + "\r\n")

    def draw(self, rows: Sequence[Row], now: float) -> None:
        """Draw the rows below the cursor's line, and restore the position of the cursor."""
        columns, lines = self._size()
        shown = render_rows(
            rows[: max(1, lines // 2)], now, columns, has_colours=self._has_colours
        )
        # At the end of the screen, moving the cursor down scrolls the screen. The cursor then moves
        # up again, in the same column.
        scrolled = "\x1bD" * len(shown) + f"\x1b[{len(shown)}A"
        text = "".join(f"\r\n\x1b[2K{line}" for line in shown)
        with self._lock:
            cleared = _CLEAR if self._height else ""
            # Ctrl-C may interrupt a draw when only some rows are on the screen, so the height is set
            # before the draw.
            self._height = max(self._height, len(shown))
            if shown:
                self._write(f"{cleared}{scrolled}\x1b7{text}\x1b8")
            elif cleared:
                self._write(cleared)
            self._height = len(shown)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Remove the rows while the context lasts. The next `draw` shows rows again."""
        with self._lock:
            if self._height:
                self._write(_CLEAR)
            self._height = 0
            yield

    def clear(self) -> None:
        """Remove the rows."""
        with self.writing():
            pass


def render_rows(
    rows: Sequence[Row], now: float, columns: int, *, has_colours: bool = True
) -> list[str]:
    """Return one line of terminal text for each row."""
    if not rows:
        return []
    # Importing rich takes longer than starting a clone, and only a terminal needs rich.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table.grid(padding=(0, 1), expand=True)
    for style, ratio in (("dim", None), ("cyan", None), ("", 3), ("dim", 2)):
        table.add_column(style=style, ratio=ratio, no_wrap=True, overflow="ellipsis")
    for row in rows:
        left = "" if row.event.until is None else f" of {max(0, row.event.until - row.since):.0f}"
        table.add_row(
            Text(row.worker),
            Text(row.subject),
            Text.assemble(
                (f"{now - row.since:.0f}{left} s ", "yellow"),
                row.event.message.partition("\n")[0],
            ),
            Text(row.console),
        )
    output = io.StringIO()
    console = Console(
        file=output,
        width=max(1, columns - 1),
        force_terminal=True,
        color_system="auto" if has_colours else None,
        legacy_windows=False,
    )
    console.print(table)
    return output.getvalue().rstrip("\n").split("\n")
