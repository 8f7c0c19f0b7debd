"""The command at which `set -e` ended a provisioner that is a bash script: how it is noted and read; pure.

A script that ends so prints nothing of its own. `run-provisioner.sh` writes a file that bash reads before the script:
it sets a trap on ERR, which notes the command in the folder of the run. Programs that the script starts do not
read it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.cloudinit import GuestFile

#: The file in the folder of a run that has the command.
FAILED_COMMAND = "failed-command"
_BASH_FILE = "/run/gpu-node-failed-command.bash"
_BASH = re.compile(rb"#!\s*\S*/(?:env\s+(?:-\S+\s+)*)?bash\b")
#: A script's own trap, also where its command has several lines, or what is in the way of ours.
_OWN_TRAP = re.compile(
    rb"\btrap\b[^\n]*\b(?:ERR|-p)\b|^[ \t]*['\"}]+[ \t]+ERR\b|\btrap[ \t]*(?:[)|;&>]|$)|\bBASH_ENV\b",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class FailedCommand:
    """A command that failed where no condition looked at it, in the line of a file that bash names."""

    command: str
    exit_code: int
    file: str
    line: int


def noting_environment(argv: Sequence[str], files: Sequence[GuestFile]) -> Mapping[str, str]:
    """Return the variables of a command with which bash notes at which command `set -e` ends it.

    There are none where the program is no bash script among `files`, and where one of them sets a trap on ERR
    itself: functions would inherit it.
    """
    contents = {file.path: file.content for file in files}
    place = next((place for place, word in enumerate(argv) if word in contents), None)
    if place is None or any(
        _OWN_TRAP.search(content.replace(b"\\\n", b" ")) for content in contents.values()
    ):
        return {}
    is_bash = (
        _BASH.match(contents[argv[0]]) is not None
        if place == 0
        else argv[0].rpartition("/")[2] == "bash"
    )
    return {"BASH_ENV": _BASH_FILE} if is_bash else {}


def parse_failed_command(text: str) -> FailedCommand | None:
    """Return the command of a run's record; None where it is damaged."""
    lines = text.split("\n", 3)
    if len(lines) < 4 or not all(re.fullmatch(r"\d{1,9}", number) for number in lines[:2]):
        return None
    return FailedCommand(
        command=lines[3].strip(), exit_code=int(lines[0]), file=lines[2], line=int(lines[1])
    )
