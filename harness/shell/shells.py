"""The shells that can run `*_spec.sh` files, and the lookup of a shell by its name on this host."""

from __future__ import annotations

import enum
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadInputError


class ShellKind(enum.Enum):
    """The implementation of a shell, whatever name it has on this host."""

    BASH = "bash"
    DASH = "dash"
    ASH = "ash"


@dataclass(frozen=True, kw_only=True)
class SpecShell:
    """A shell, and the command that starts it.

    `is_posix` is true if code for the shell may use only POSIX syntax and `local`, as in bash
    under the name `sh`.
    """

    kind: ShellKind
    command: tuple[str, ...]
    is_posix: bool

    @property
    def text(self) -> str:
        return " ".join(self.command)

    @property
    def shebang(self) -> str:
        """The shebang line with the path of this shell; a shebang line with `env` would start one more process."""
        first, *others = self.command
        return " ".join([f"#!{shutil.which(first) or f'/bin/{first}'}", *others])


BASH = SpecShell(kind=ShellKind.BASH, command=("bash",), is_posix=False)
_NAMES = {"sh", "bash", "dash", "ash", "busybox"}
_PROGRAMS = {"bash": ShellKind.BASH, "dash": ShellKind.DASH, "busybox": ShellKind.ASH}


def find_shell(value: str, *, source: str, line: int | None) -> SpecShell:
    """Return the shell that the option `--shell` of a spec project names.

    `value` is the name or the path of the shell.

    Raises BadInputError for a shell that is not supported or not installed.
    """
    first, *applet = value.split() or [""]
    name = Path(first).name
    if name not in _NAMES or applet not in ([], ["ash"], ["sh"]):
        raise BadInputError(
            f"Specs run in bash, dash and BusyBox ash; '--shell {value}' is not supported.",
            source=source,
            line=line,
        )
    if value == "bash":
        return BASH
    path = shutil.which(first)
    if path is None and first == "ash":
        path, name = shutil.which("busybox"), "busybox"
    if path is None:
        raise BadInputError(
            f"There is no '{value}' on this host; install it, or name an installed shell.",
            source=source,
            line=line,
        )
    program = Path(path).resolve().name
    kind = _PROGRAMS.get(program)
    if kind is None:
        raise BadInputError(
            f"'--shell {value}' is {program} on this host, which is not supported; "
            "specs run in bash, dash and BusyBox ash.",
            source=source,
            line=line,
        )
    command = (path, *(applet or ["ash"])) if name == "busybox" else (path,)
    return SpecShell(kind=kind, command=command, is_posix=name != "bash")
