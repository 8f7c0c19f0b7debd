"""Virtual time for shell code, so that a `sleep` in the code under test takes no real time."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RequirementError

if TYPE_CHECKING:
    from collections.abc import Mapping

LIBRARY = Path(__file__).with_name("clock.sh")
_COMMANDS = {"sleep": "sleep", "timeout": "__hx_become_timeout", "date": "date"}
"""The commands that use the virtual clock, each with its function in `clock.sh`."""
_LOGGED = re.compile(r"sleep (\d+) at (\d+)")


@dataclass(frozen=True, kw_only=True)
class Sleep:
    """One sleep in virtual time: the duration of the sleep, and the sum of all earlier sleeps' durations."""

    seconds: float
    at_s: float


def write_clock_commands(folder: Path) -> Path:
    """Write the commands `sleep`, `timeout` and `date` for the virtual clock; return their directory."""
    folder.mkdir(parents=True, exist_ok=True)
    bash = shutil.which("bash") or "/bin/bash"
    for name, function in _COMMANDS.items():
        path = folder / name
        path.write_text(f'#!{bash}\n. "$HX_CLOCK"\n{function} "$@"\n')
        path.chmod(0o755)
    return folder


def clock_environment(commands: Path, path: str) -> Mapping[str, str]:
    """Return the environment with which a shell and its commands use the virtual clock.

    Raises RequirementError if the host lacks the real `sleep`, `timeout` or `date`.
    """
    found = {name: shutil.which(name) for name in _COMMANDS}
    missing = [name for name, place in found.items() if place is None]
    if missing:
        raise RequirementError(f"Virtual time needs '{missing[0]}'; install coreutils.")
    return {
        "HX_CLOCK": str(LIBRARY),
        **{f"HX_{name.upper()}": str(place) for name, place in found.items()},
        "PATH": f"{commands}{os.pathsep}{path}",
    }


def read_sleeps(log: str) -> list[Sleep]:
    """Return the sleeps in the log of a virtual clock, in order."""
    return [
        Sleep(seconds=int(found[1]) / 1000, at_s=int(found[2]) / 1000)
        for found in _LOGGED.finditer(log)
    ]
