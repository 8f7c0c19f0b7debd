"""Records the order and exit codes of command calls in a machine. The real commands still run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cloudinit import GuestFile
from harness.errors import BadInputError, HarnessError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.evidence import Evidence

CALLS = "/var/log/harness-calls"
#: The first folder in the PATH of cloud-init and of root's shells.
_FOLDER = "/usr/local/sbin"
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
#: The program writes each line by a single write, so that lines of several processes do not mix.
_SCRIPT = r"""#!/bin/sh
# Records this call and runs the real command (harness.lab.call_recorder). It uses subshells, since
# an assignment to an exported variable would change the command's environment.
find_real() (
    rest=$PATH:
    while [ -n "$rest" ]; do
        folder=${rest%%:*} rest=${rest#*:}
        file=${folder:-.}/@NAME@
        [ -f "$file" ] && [ -x "$file" ] && ! [ "$file" -ef "$0" ] || continue
        printf '%s' "$file"
        break
    done
)
(
    words=$(printf '\037%s' @NAME@ "$@" && echo x)
    printf 'B\037%s%s\036\n' "$$" "${words%x}" >>@LOG@
)
set -- "$(find_real)" "$@"
if [ -n "$1" ]; then "$@"; else (exit 127); fi
code=$?
printf 'E\037%s\037%s\036\n' "$$" "$code" >>@LOG@
exit "$code"
"""
_RECORD = re.compile(r"(?P<kind>[BE])\x1f(?P<process>\d+)\x1f(?P<rest>[^\x1e]*)\x1e\n")


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """A call of a command. The exit code is None if the call had not ended."""

    argv: tuple[str, ...]
    exit_code: int | None


@dataclass(frozen=True)
class CallRecorder:
    """Records the calls of `commands` on a node.

    The node's request has to contain this recorder's `files`. Only calls by name are recorded, not
    calls by an absolute path.
    """

    commands: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.commands, str) or not self.commands:
            raise BadInputError(
                f"A list of commands was expected, such as ['dkms'], but {self.commands!r} was given.",
                source="CallRecorder",
                key="commands",
            )
        for name in self.commands:
            if _NAME.fullmatch(name) is None:
                raise BadInputError(
                    f"'{name}' is not the name of a command, such as 'systemctl'.",
                    source="CallRecorder",
                    key="commands",
                )

    @property
    def files(self) -> Sequence[GuestFile]:
        """Return the programs that replace the real commands in PATH."""
        return [
            GuestFile(
                path=f"{_FOLDER}/{name}",
                content=_SCRIPT.replace("@NAME@", name).replace("@LOG@", CALLS).encode(),
                mode=0o755,
            )
            for name in self.commands
        ]

    @property
    def log(self) -> str:
        """Return the path of the log, which `node.evidence(files=[…])` has to gather."""
        return CALLS

    def calls(self, evidence: Evidence) -> list[RecordedCall]:
        """Return the calls in the order in which they began.

        Raises HarnessError if the log was not gathered, or is truncated.
        """
        evidence.refuse_cut(CALLS)
        text = evidence.file(CALLS)
        if text is None:
            raise HarnessError(
                f"The evidence has no '{CALLS}': no command was called, or the file was not "
                "gathered; add the file to 'files' of `node.evidence`.",
                evidence=evidence.folder,
            )
        return parse_calls(text)


def parse_calls(text: str) -> list[RecordedCall]:
    """Return the calls in a log. An end in the log belongs to the latest call of the same process."""
    calls: list[RecordedCall] = []
    running: dict[str, int] = {}
    for found in _RECORD.finditer(text):
        if found["kind"] == "B":
            running[found["process"]] = len(calls)
            calls.append(RecordedCall(argv=tuple(found["rest"].split("\x1f")), exit_code=None))
        elif found["rest"].isdecimal() and found["process"] in running:
            place = running.pop(found["process"])
            calls[place] = RecordedCall(argv=calls[place].argv, exit_code=int(found["rest"][:3]))
    return calls
