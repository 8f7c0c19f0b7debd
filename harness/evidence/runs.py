"""Reads the records of a provisioner's numbered runs; `run-provisioner.sh` writes these records.

The folder of a run contains the files `command` and `boot-id`. The folder of a run also contains
`exit-code` if the run has ended, and `failed-command` if `set -e` ended a bash script. The folder
of a run records the state before the run: the outcome file (`outcome-before`) and its stamp
(`outcome-stamp-before`), the paths of the event files (`events-before`), and the size of the log
(`log-bytes-before`). So the state of the provisioner's files after a run is the state before the
next run or, for the latest run, the present state. The stamp of the outcome file is recorded again
after the run (`outcome-stamp-after`), because two runs may write an outcome file with the same
text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.foreign_files import evidence_text
from harness.provisioner import RUNS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_MOST_DIGITS = 18
_BEGINNING = re.compile(r"^-- run (\d{1,9}) of the provisioner: .*\n?", re.MULTILINE)


class Runs:
    """The provisioner's runs in the folder `files` of one evidence folder; the first run has number 1."""

    def __init__(self, files: Path) -> None:
        self._folder = files / RUNS_FOLDER.lstrip("/")

    @property
    def numbers(self) -> Sequence[int]:
        """Return the numbers of the runs, oldest first."""
        found = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(
            int(folder.name)
            for folder in found
            if folder.name.isdecimal() and len(folder.name) < _MOST_DIGITS
        )

    def chosen(self, number: int | None) -> int | None:
        """Return `number`; if None, return the latest run's number, or None if there are no runs.

        Raises HarnessError if there is no run with this number.
        """
        numbers = self.numbers
        if number is None:
            return numbers[-1] if numbers else None
        if number not in numbers:
            runs = ", ".join(map(str, numbers)) or "none"
            raise HarnessError(
                f"The evidence has no run {number} of the provisioner; its runs are: {runs}.",
                evidence=self._folder,
            )
        return number

    def is_latest(self, number: int) -> bool:
        return number == self.numbers[-1]

    def stored(self, number: int, name: str) -> str | None:
        """Return the content of the file `name` in the folder of a run, or None if there is no such file."""
        kept = self._folder / str(number) / name
        return evidence_text(kept, below=self._folder) if kept.is_file() else None

    def output(self, number: int, text: str) -> str:
        """Return the part of `text` that run `number` printed; `text` is the output of all runs.

        On a node from a baked image, the output begins with the runs that baked the image. The runs
        of the bake have the same numbers as later runs, so the output of the last run with the
        number is returned.
        """
        parts = _BEGINNING.split(text)
        printed = {int(run): lines for run, lines in zip(parts[1::2], parts[2::2], strict=True)}
        return printed.get(number, "")

    def outcome(self, number: int, present: str | None) -> str | None:
        """Return the outcome file that a run wrote, or None; `present` is the latest content of the file."""
        left = present if self.is_latest(number) else self.stored(number + 1, "outcome-before")
        before = self.stored(number, "outcome-stamp-before")
        after = self.stored(number, "outcome-stamp-after")
        if before and after:
            is_written = before != after
        else:
            # There was no outcome before the run, or the machine stopped during the run.
            is_written = left != self.stored(number, "outcome-before")
        return left if is_written else None

    def log(self, number: int, content: bytes) -> bytes:
        """Return the part of the declared log that a run wrote.

        Raises HarnessError if the log is shorter now than it was before a later run.
        """
        begin = self._log_bytes_before(number)
        if self.is_latest(number):
            # A log that is shorter now was replaced, so its whole content is new.
            return content[begin:] if begin <= len(content) else content
        end = self._log_bytes_before(number + 1)
        if not begin <= end <= len(content):
            raise HarnessError(
                f"The provisioner's log was replaced since run {number}, or only its beginning was "
                "collected, so it does not show what that run wrote.",
                evidence=self._folder,
            )
        return content[begin:end]

    def _log_bytes_before(self, number: int) -> int:
        text = (self.stored(number, "log-bytes-before") or "").strip()
        return int(text) if text.isdecimal() and len(text) < _MOST_DIGITS else 0

    def events(self, number: int, files: Mapping[str, str]) -> Mapping[str, str]:
        """Return the event files that a run wrote, selected from all event files."""
        before = self._events_before(number)
        after = set(files) if self.is_latest(number) else self._events_before(number + 1)
        return {path: text for path, text in files.items() if path in after - before}

    def _events_before(self, number: int) -> set[str]:
        return set((self.stored(number, "events-before") or "").split("\n"))
