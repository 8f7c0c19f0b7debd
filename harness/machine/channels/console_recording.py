"""A serial console with its timing, as an asciicast: each line is JSON, and players know the format."""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import time
from typing import TYPE_CHECKING

from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: The file in a machine's folder, beside the raw log.
RECORDING = "serial.cast"
_VERSION = 2


class ConsoleRecorder:
    """Writes what it is called with, and when, to the new file `path`; the end of the console is b""."""

    def __init__(
        self, path: Path, *, title: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = path.open("x", encoding="utf-8")
        self._clock = clock
        self._began = clock()
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._write(
            {
                "version": _VERSION,
                "width": 80,
                "height": 24,
                "timestamp": int(time.time()),
                "title": title,
            }
        )

    def __call__(self, chunk: bytes) -> None:
        text = self._text.decode(chunk)
        if text:
            # A full disk must not end the thread that reads the console: the guest would block.
            with contextlib.suppress(OSError):
                self._write([round(self._clock() - self._began, 3), "o", text])

    def _write(self, value: object) -> None:
        self._file.write(json.dumps(value) + "\n")
        # A reader may look at any time, and a killed run leaves what was printed.
        self._file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def read_recording(path: Path) -> Iterator[tuple[float, str]]:
    """Yield what was printed, each with the seconds since the recording's begin.

    A line that was cut, as by a full disk, ends it. Raises BadInputError for what is no recording.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            version = json.loads(file.readline())["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadInputError("This is no asciicast.", source=str(path)) from error
        if version != _VERSION:
            raise BadInputError(
                f"This asciicast has version {version}; {_VERSION} is read.", source=str(path)
            )
        for number, line in enumerate(file, start=2):
            try:
                event = json.loads(line)
            except ValueError:
                return
            match event:
                case [int() | float() as at, str() as kind, str() as text] if math.isfinite(at):
                    if kind == "o":
                        # JSON has surrogates that no terminal takes.
                        yield float(at), text.encode(errors="replace").decode()
                case _:
                    raise BadInputError(
                        "A line of an asciicast is [SECONDS, KIND, TEXT], but this one is "
                        f"{line.strip()[:80]!r}.",
                        source=f"{path}:{number}",
                    )
