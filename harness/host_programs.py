"""Finds programs of the host in PATH and in the sbin folders, which a user's PATH lacks on Debian."""

from __future__ import annotations

import os
import shutil

_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def search_path() -> str:
    """Return PATH with the sbin folders appended."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])


def find_program(name: str) -> str | None:
    """Return the path of a program, or None."""
    return shutil.which(name, path=search_path())
