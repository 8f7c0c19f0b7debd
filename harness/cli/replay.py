"""`harness replay`: plays a machine's serial console as it was printed."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.options import settings_of
from harness.errors import BadInputError
from harness.evidence.archive import opened, several_machines
from harness.machine.channels.console_recording import RECORDING, read_recording
from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from harness.cli.options import Commands

_LONGEST_PAUSE_S = 2.0
#: The control sequences of a terminal (ECMA-48), and control characters that are more than layout.
_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?"
    r"|[\x05\x0e\x0f\x7f-\x9f]"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
_LONGEST_SEQUENCE = 4096
#: Those that only draw: colours, the cursor, erasing.
_DRAWS = re.compile(r"\x1b(?:\[[0-9;]*[@A-HJ-MPSTXZ`abdefmrsu]|\[\?(?:7|25)[hl]|[78DEHM]|\([0AB])")
#: Colours, cursor, wrapping, scrolled lines and character set as before.
_AS_BEFORE = "\x1b[0m\x1b[?25h\x1b[?7h\x1b7\x1b[r\x1b8\x1b(B"


def add_parser(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("replay")
    parser.add_argument(
        "bundle",
        type=Path,
        metavar="BUNDLE",
        help="the evidence folder of a machine or its test, or its archive",
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="FACTOR",
        help="how many times faster than it was printed; 0 prints it at once (default: %(default)g)",
    )
    parser.set_defaults(run=_replay)


def _speed(word: str) -> float:
    try:
        speed = float(word)
    except ValueError:
        speed = -1.0
    if not speed >= 0:
        raise argparse.ArgumentTypeError(f"'{word}' is not a factor; give a number of 0 or more.")
    return speed


def _replay(arguments: argparse.Namespace) -> int:
    with opened(arguments.bundle, settings_of(arguments).runs_folder) as folder:
        _play(_recording_in(folder, arguments.bundle), arguments.speed)
    return 0


def _recording_in(folder: Path, bundle: Path) -> Path:
    found = sorted(folder.glob(f"**/{RECORDING}"))
    if len(found) > 1:
        raise several_machines([path.parent.parent for path in found], folder, bundle)
    if not found:
        raise BadInputError(f"There is no '{RECORDING}' below it.", source=str(bundle))
    return found[0]


def without_commands(
    printed: Iterable[tuple[float, str]],
) -> Iterator[tuple[float, str]]:
    """Yield the output of a console, each with its seconds, without what a terminal would do but draw.

    A guest asks its terminal for its size, and the answer would be typed into the user's shell. It may also set
    the title or the clipboard.
    """
    held = ""
    for at, text in printed:
        whole = held + text
        found = _UNFINISHED.search(whole)
        is_held = found is not None and len(whole) - found.start() <= _LONGEST_SEQUENCE
        end = found.start() if found is not None and is_held else len(whole)
        held = whole[end:]
        yield (
            at,
            _SEQUENCE.sub(
                lambda sequence: sequence[0] if _DRAWS.fullmatch(sequence[0]) else "", whole[:end]
            ),
        )


def _play(recording: Path, speed: float) -> None:
    printed = read_recording(recording)
    if not sys.stdout.isatty():
        _print(printed, speed)
        return
    try:
        _print(without_commands(printed), speed)
    finally:
        sys.stdout.write(_AS_BEFORE)


def _print(printed: Iterable[tuple[float, str]], speed: float) -> None:
    last = 0.0
    for at, text in printed:
        if speed:
            # Nobody wants to watch a guest wait.
            SYSTEM_CLOCK.sleep(min(at - last, _LONGEST_PAUSE_S) / speed)
        last = at
        sys.stdout.write(text)
        sys.stdout.flush()
