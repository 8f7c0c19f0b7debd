"""`harness replay`: plays the recording of a machine's serial console."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.console_text import AS_BEFORE, without_commands
from harness.cli.options import settings_of
from harness.errors import BadInputError
from harness.evidence.archive import machine_folders, opened, several_machines
from harness.machine.channels.console_recording import RECORDING, read_recording
from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.cli.options import Commands

_LONGEST_PAUSE_S = 2.0
_SLOWEST = 0.001


def add_parser(commands: Commands) -> None:
    """Add `replay` to the commands of `harness`."""
    parser = commands.add_parser("replay")
    parser.add_argument(
        "bundle",
        type=Path,
        metavar="BUNDLE",
        help="the evidence folder of a machine or of its test, or an archive of the folder",
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="FACTOR",
        help="the speed, as a factor of the original; 0 prints all at once (default: %(default)g)",
    )
    parser.set_defaults(run=_replay)


def _speed(word: str) -> float:
    try:
        speed = float(word)
    except ValueError:
        speed = -1.0
    # A very small factor would make pauses of years, which overflow the clock.
    if speed != 0 and not speed >= _SLOWEST:
        raise argparse.ArgumentTypeError(
            f"'{word}' is not a factor; give 0, or a number of at least {_SLOWEST}."
        )
    return speed


def _replay(arguments: argparse.Namespace) -> int:
    with opened(arguments.bundle, settings_of(arguments).runs_folder) as folder:
        _play(_recording_in(folder, arguments.bundle), arguments.speed)
    return 0


def _recording_in(folder: Path, bundle: Path) -> Path:
    recordings = [machine / "host" / RECORDING for machine in machine_folders(folder)]
    found = [each for each in (folder / RECORDING, *recordings) if each.is_file()]
    if len(found) > 1:
        raise several_machines([path.parent.parent for path in found], folder, bundle)
    if not found:
        raise BadInputError(
            f"There is no '{RECORDING}' in this folder or archive.", source=str(bundle)
        )
    return found[0]


def _play(recording: Path, speed: float) -> None:
    printed = read_recording(recording)
    if not sys.stdout.isatty():
        _print(printed, speed)
        return
    try:
        _print(without_commands(printed), speed)
    finally:
        sys.stdout.buffer.write(AS_BEFORE.encode())


def _print(printed: Iterable[tuple[float, str]], speed: float) -> None:
    last = 0.0
    for at, text in printed:
        if speed:
            # Shorten long pauses of the guest.
            SYSTEM_CLOCK.sleep(min(at - last, _LONGEST_PAUSE_S) / speed)
        last = at
        # The guest may have printed a character that the locale's encoding lacks.
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
