"""Prints that a report could not be written, for example on a full disk, and makes the run fail."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError

if TYPE_CHECKING:
    from pathlib import Path


def note_unwritten(session: pytest.Session, what: object, reason: object) -> None:
    """Print that a report is missing, and let the run fail, since a missing report looks like success."""
    session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
    sentence = f"harness: The report '{what}' could not be written: {reason_of(reason)}."
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        # The line of progress that pytest has begun may not be complete.
        reporter.ensure_newline()
        reporter.write_line(sentence, red=True)
    else:
        sys.stderr.write(f"{sentence}\n")


def reason_of(error: object) -> str:
    """Return the operating system's words for an OSError, or the text of any other error."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")


def require_writable(folder: Path, *, option: str) -> None:
    """Make a folder for reports. Raises BadInputError if no file can be written in the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\n" * os.sysconf("SC_PAGESIZE"))
            probe.flush()
    except OSError as error:
        raise BadInputError(
            f"No report can be written to '{folder}': {reason_of(error)}.", source=option
        ) from error


def is_replaceable(path: Path) -> bool:
    """Return whether a temporary file may replace a report: not if the report is a link or a device."""
    return not path.is_symlink() and (path.is_file() or not path.exists())
