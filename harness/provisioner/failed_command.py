"""Pure functions about the failed command at which `set -e` ended a bash provisioner.

`set -e` ends a script without a message. So `run-provisioner.sh` writes a file that sets a trap on
ERR, and bash reads that file before the script. The trap records the failed command in the folder
of the provisioner's run. Programs that the script starts do not read the file with the trap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.cloudinit import GuestFile

#: The file in a run's folder that contains the command.
FAILED_COMMAND = "failed-command"
_BASH_FILE = "/run/gpu-node-failed-command.bash"
_BASH = re.compile(rb"#!\s*\S*/(?:env\s+(?:-\S+\s+)*)?bash\b")
#: Matches a script's own trap on ERR, even if the trap's command has several lines; also matches
#: other code that conflicts with our trap.
_OWN_TRAP = re.compile(
    rb"\btrap\b[^\n]*\b(?:ERR|-p)\b|^[ \t]*['\"}]+[ \t]+ERR\b|\btrap[ \t]*(?:[)|;&>]|$)|\bBASH_ENV\b",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class FailedCommand:
    """A command that failed outside a condition such as `if`; bash reported `file` and `line`."""

    command: str
    exit_code: int
    file: str
    line: int


def noting_environment(argv: Sequence[str], files: Sequence[GuestFile]) -> Mapping[str, str]:
    """Return environment variables that make bash record where `set -e` ends a script.

    The result is empty if the program is not a bash script among `files`. The result is also empty
    if one of the files sets its own trap on ERR, since shell functions would inherit the harness's
    trap.
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
    """Return the failed command that a run recorded, or None if the record is damaged."""
    lines = text.split("\n", 3)
    if len(lines) < 4 or not all(re.fullmatch(r"\d{1,9}", number) for number in lines[:2]):
        return None
    return FailedCommand(
        command=lines[3].strip(), exit_code=int(lines[0]), file=lines[2], line=int(lines[1])
    )
