"""Records a serial console with its timing as an asciicast, a file with one JSON value per line."""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import math
import time
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.foreign_files import open_plain
from harness.foreign_json import ForeignJsonError, parse_json, parse_json_object
from harness.limits import CONSOLE_RECORDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: The name of the recording in a machine's folder.
RECORDING = "serial.cast"
_VERSION = 2
#: Limit of a line: a read of the console returns at most 64 KiB, and JSON may need 12 bytes for
#: each byte.
_LONGEST_LINE = 1 << 20


class ConsoleRecorder:
    """Writes the chunk of each call, with the time of the call, to the new file `path`.

    The chunk b"" means that the console has ended. At the limit of a recording, the last line is a
    marker that names the limit.
    """

    def __init__(
        self, path: Path, *, title: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = path.open("x", encoding="utf-8")
        self._clock = clock
        self._began = clock()
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._written_bytes = 0
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
        if not text or self._written_bytes > CONSOLE_RECORDING.bytes:
            return
        at_s = round(self._clock() - self._began, 3)
        # A full disk must not end the thread that reads the console: the guest would block.
        with contextlib.suppress(OSError):
            self._write([at_s, "o", text])
            if self._written_bytes > CONSOLE_RECORDING.bytes:
                self._write([at_s, "m", str(CONSOLE_RECORDING.error(self._file.name))])

    def _write(self, value: object) -> None:
        self._written_bytes += self._file.write(json.dumps(value) + "\n")
        # Each line is flushed immediately, so that the recording can be read during the run and
        # survives a killed run.
        self._file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def read_recording(path: Path) -> Iterator[tuple[float, str]]:
    """Yield parts of the output, each with the seconds since the start of the recording.

    A truncated line, for example after a full disk, ends the recording. Raises BadInputError if
    the file is not a recording, and LimitError if it is too long.
    """
    with open_plain(path, limit=CONSOLE_RECORDING, slack=_LONGEST_LINE) as file:
        try:
            version = parse_json_object(file.readline(_LONGEST_LINE))["version"]
        except (ValueError, KeyError) as error:
            raise BadInputError("The file is not an asciicast.", source=str(path)) from error
        if version != _VERSION:
            raise BadInputError(
                f"The asciicast has version {version!r}; only version {_VERSION} can be read.",
                source=str(path),
            )
        for number in itertools.count(2):
            line = file.readline(_LONGEST_LINE)
            if not line.endswith(b"\n"):
                if len(line) == _LONGEST_LINE:
                    raise BadInputError(
                        f"A line of an asciicast may have at most {_LONGEST_LINE >> 20} MiB.",
                        source=f"{path}:{number}",
                    )
                # The line was truncated, or the file ends.
                if not line:
                    return
            try:
                event = parse_json(line.decode(errors="replace"))
            except ForeignJsonError as error:
                if isinstance(error.__cause__, json.JSONDecodeError):
                    return
                event = None
            match event:
                case [int() | float() as at, str() as kind, str() as text] if math.isfinite(at):
                    if kind == "o":
                        # JSON may have surrogates, which no terminal can show.
                        yield float(at), text.encode(errors="replace").decode()
                case _:
                    raise BadInputError(
                        "A line of an asciicast is [SECONDS, KIND, TEXT], but this one is "
                        f"{line.strip()[:80].decode(errors='replace')!r}.",
                        source=f"{path}:{number}",
                    )
