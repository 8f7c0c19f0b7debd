"""Refuses an option whose value kept pytest from reading the project's own configuration.

pytest looks for its ini file before it loads this plugin, which defines the option `--qemu`. In
`--qemu /opt/qemu`, pytest treats the second word as the path of a test, and looks for the ini file
near that path.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.options import OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

#: The options whose values may be paths.
_OPTIONS = frozenset(
    {
        *(option.name for option in OPTIONS.values()),
        *("--report-dir", "--durations-file"),
        *("--shell-cov", "--shell-cov-data", "--shell-cov-lcov"),
    }
)
#: The name of each ini file, and the text that the file needs before pytest accepts it.
_INI_FILES = (
    ("pytest.toml", ""),
    (".pytest.toml", ""),
    ("pytest.ini", ""),
    (".pytest.ini", ""),
    ("pyproject.toml", "[tool.pytest"),
    ("tox.ini", "[pytest]"),
    ("setup.cfg", "[tool:pytest]"),
)


def refuse(config: pytest.Config) -> None:
    """Raise BadInputError if an option's value kept pytest from reading an ini file."""
    if config.inipath is not None:
        return
    here = config.invocation_params.dir
    for option, value in pairwise(map(str, config.invocation_params.args)):
        if option not in _OPTIONS or not _exists(here / value):
            continue
        unread = _ini_file(here)
        if unread is not None:
            raise BadInputError(
                f"pytest took '{value}' for the path of tests, and therefore did not read the "
                f"configuration file '{unread}'; write "
                f"'{option}={value}', in one word.",
                source=option,
            )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # The text is too long for a path.
        return False


def _ini_file(here: Path) -> Path | None:
    for folder in (here, *here.parents):
        for name, mark in _INI_FILES:
            path = folder / name
            with contextlib.suppress(OSError):
                if path.is_file() and mark in path.read_text(errors="replace"):
                    return path
    return None
