"""Shows progress: on a terminal below what pytest prints there, elsewhere as lines with times."""

from __future__ import annotations

import contextlib
import io
import shutil
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from harness.progress import ProgressEvent
    from harness.progress.board import Board, Row

_LOOK_S = 1.0
_CLOSE_S = 5.0


class Surface(Protocol):
    """Where progress is shown."""

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines that stay."""
        ...

    def draw(self, rows: Sequence[Row], now: float) -> None:
        """Show what goes on now, in place of what was shown before."""
        ...

    def close(self) -> None:
        """Remove what does not stay."""
        ...


class Display:
    """Takes the events of a run, from any thread, and shows them; a thread keeps times up to date."""

    def __init__(
        self, surface: Surface, board: Board, clock: Callable[[], float] = time.time
    ) -> None:
        self._surface = surface
        self._clock = clock
        self._board = board
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, event: ProgressEvent, worker: str = "") -> None:
        with self._lock:
            if self._is_closed.is_set():
                return
            now = self._clock()
            self._show(self._board.take(event, worker, now), now)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="display", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        while not self._is_closed.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Show what has become due."""
        with self._lock:
            if not self._is_closed.is_set():
                now = self._clock()
                self._show(self._board.due(now), now)

    def _show(self, lines: Sequence[str], now: float) -> None:
        if lines:
            self._surface.print_lines(lines)
        self._surface.draw(self._board.rows(now), now)

    def close(self) -> None:
        """Show nothing more."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        with self._lock:
            self._surface.close()


class PlainLines:
    """Writes lines, each in one call; `is_line_open` says whether the output is amid a line."""

    def __init__(
        self, write: Callable[[str], object], is_line_open: Callable[[], bool] = lambda: False
    ) -> None:
        self._write = write
        self._is_line_open = is_line_open

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines that stay."""
        newline = "\n" if self._is_line_open() else ""
        self._write(newline + "".join(f"{line}\n" for line in lines))

    def draw(self, rows: Sequence[Row], now: float) -> None:
        """Show nothing: lines stay as they are."""

    def close(self) -> None:
        """Nothing is to be removed."""


class LiveRegion:
    """Rows below the cursor of a terminal, where another program part goes on writing.

    It calls `writing` around each of its writes, so that the rows make room. `write` writes to the
    terminal at once.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        size: Callable[[], os.terminal_size] = shutil.get_terminal_size,
    ) -> None:
        self._write = write
        self._size = size
        self._lock = threading.RLock()
        self._height = 0
        self._is_paused = 0

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print nothing that stays: the rows say the same."""

    def draw(self, rows: Sequence[Row], now: float) -> None:
        """Draw the rows below the cursor's line, which the cursor does not leave."""
        with self._lock:
            if self._is_paused:
                return
            columns, lines = self._size()
            shown = render_rows(rows[: max(1, lines // 2)], now, columns)
            # Down and up again scrolls, so that there is room; the column stays.
            room = "\x1bD" * len(shown) + f"\x1b[{len(shown)}A" if shown else ""
            text = "".join(f"\r\n\x1b[2K{line}" for line in shown)
            self._write(f"{self._clear()}{room}\x1b7{text}\x1b8" if shown else self._clear())
            self._height = len(shown)

    def _clear(self) -> str:
        cleared = "\x1b[J" if self._height else ""
        self._height = 0
        return cleared

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Remove the rows; they are back at the next look."""
        with self._lock:
            if cleared := self._clear():
                self._write(cleared)
            yield

    def pause(self) -> None:
        """Leave the terminal to a person, until `go_on`."""
        with self.writing():
            self._is_paused += 1

    def go_on(self) -> None:
        """Draw again."""
        with self._lock:
            self._is_paused -= 1

    def close(self) -> None:
        """Remove the rows."""
        with self.writing():
            pass


def render_rows(rows: Sequence[Row], now: float, columns: int) -> list[str]:
    """Return a line for a terminal for each row."""
    if not rows:
        return []
    # Only a terminal needs it, and it takes longer to load than a clone to start.
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
    Console(file=output, width=columns - 1, force_terminal=True, legacy_windows=False).print(table)
    return output.getvalue().rstrip("\n").split("\n")
