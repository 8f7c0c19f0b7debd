"""Puts the unit suites' temporary files into memory, where the host has room for them.

The suites make tens of thousands of small files and folders; on a disk these cost more time than
all else that the tests do.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a private folder below it
_NEEDED_BYTES = 512 << 20
_NEEDED_FILES = 200_000


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return False
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize >= _NEEDED_BYTES and state.f_favail >= _NEEDED_FILES


if "TMPDIR" not in os.environ and _has_room(_MEMORY):
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None
