"""systemd units: commands that start and stop units, drop-ins, and units' environment files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .node_context import ANSWER_TIMEOUT_S
from .plan import Action, Retry, Run, When, Write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .command import CommandResult

UNIT_DIRECTORY = "/etc/systemd/system"
STOP = Retry(attempts=20, pause_s=5, timeout_s=25)
ENABLE = Retry(attempts=120, pause_s=5, timeout_s=25)

_QUOTED = r"""[ \t]*(?:'[^']*(?:'|\Z)|"(?:\\.|[^"\\])*(?:"|\Z))"""
#: A variable with its value, or another line, such as a comment. A string without a closing quote
#: continues to the end of the file.
_ENVIRONMENT = re.compile(
    rf"""
    (?P<name>[^ \t\n\r\#;=][^\n\r=]*)
    = (?P<quoted>(?:{_QUOTED})*) (?P<bare>(?:\\(?:.|\Z)|[^\n\r\\])*)
    | [^ \t\n\r][^\n\r]*
    """,
    re.DOTALL | re.VERBOSE,
)


def reload_units() -> Run:
    """Make systemd reload the units; ignore a failure, since later commands would show it."""
    return Run(argv=("systemctl", "daemon-reload"), retry=Retry(timeout_s=25), is_optional=True)


def start(unit: str, limit_s: float) -> tuple[Run, ...]:
    """Start a unit, wait until it is ready, and enable it."""
    return (
        reload_units(),
        Run(
            argv=("systemctl", "restart", unit),
            retry=Retry(attempts=100, pause_s=5, timeout_s=limit_s),
        ),
        Run(argv=("systemctl", "enable", unit), retry=ENABLE),
    )


def enqueue(unit: str, limit_s: float, warning: str) -> tuple[Run, ...]:
    """Start a unit without waiting for it; a failure is only logged as a warning.

    There is one attempt: if systemd refuses the job now, it will refuse the job later too. A
    monitoring service must not use up the time budget of the node.
    """
    return (
        reload_units(),
        Run(
            argv=("systemctl", "restart", "--no-block", unit),
            retry=Retry(timeout_s=limit_s),
            is_optional=True,
            warning=warning,
        ),
        Run(argv=("systemctl", "enable", unit), retry=Retry(timeout_s=25), is_optional=True),
    )


def stop(unit: str) -> tuple[Run, ...]:
    """Stop and disable a unit; failures are ignored."""
    return (
        Run(argv=("systemctl", "stop", unit), retry=STOP, is_optional=True),
        Run(argv=("systemctl", "disable", unit), retry=STOP, is_optional=True),
    )


def reset_failed(*units: str) -> Run:
    """Reset the failed state and the start counters of units."""
    return Run(
        argv=("systemctl", "reset-failed", *units),
        retry=Retry(timeout_s=25),
        is_optional=True,
    )


def is_loaded_query(unit: str) -> tuple[str, ...]:
    """Return the command that prints `loaded` if the unit exists.

    Unlike `systemctl cat`, this command does not report a unit that has only a folder of drop-ins.
    """
    return ("systemctl", "show", "--property=LoadState", "--value", unit)


def says_loaded(result: CommandResult) -> bool:
    """Return whether the result of `is_loaded_query` says that the unit exists."""
    return result.ok and result.stdout.strip() == "loaded"


def says_present(result: CommandResult) -> bool:
    """Return whether the result of `is_loaded_query` says that the unit exists or is masked.

    An administrator masks a unit on purpose. The mask hides the unit's file, so another install of
    the unit would not help.
    """
    return result.ok and result.stdout.strip() in {"loaded", "masked"}


def where_loaded(unit: str, *then: Action) -> When:
    """Run actions only if the node has the unit."""
    return When(
        query=is_loaded_query(unit),
        timeout_s=ANSWER_TIMEOUT_S,
        condition=f"the unit {unit} exists",
        otherwise=f"There is no unit {unit}.",
        is_met=says_loaded,
        then=then,
    )


def drop_in(unit: str, name: str, text: str) -> Write:
    """Return the action that writes a drop-in of a unit."""
    return Write(path=f"{UNIT_DIRECTORY}/{unit}.service.d/{name}", text=text)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A variable in an environment file; its text is at the offsets from `start` to `end`."""

    name: str
    value: str
    start: int
    end: int


def read_environment(text: str) -> Iterator[Assignment]:
    """Yield the variables in the text of an `EnvironmentFile=`, as systemd reads the text.

    A name may be indented, and a value may be in quotes. A backslash at the end of a line continues
    this line.
    """
    for found in _ENVIRONMENT.finditer(text):
        if found["name"] is None:
            continue
        bare = found["bare"].strip(" \t")
        yield Assignment(
            name=found["name"].rstrip(),
            value="".join(
                _unquote(part[0]) for part in re.finditer(_QUOTED, found["quoted"], re.DOTALL)
            )
            + re.sub(r"\\(.?)", lambda escape: escape[1].strip("\r\n"), bare, flags=re.DOTALL),
            start=found.start(),
            end=found.end() - len(found["bare"]) + len(found["bare"].rstrip(" \t")),
        )


def _unquote(part: str) -> str:
    string = part.lstrip(" \t")
    quote, content = string[0], string[1:].removesuffix(string[0])
    if quote == "'":
        return content
    return re.sub(r'\\(["\\`$\n])', lambda escape: escape[1].strip("\n"), content)


def render_assignment(name: str, value: str) -> str:
    """Render a variable of an environment file; quote the value if necessary."""
    if re.fullmatch(r"[A-Za-z0-9_./:,=@%+-]*", value):
        return f"{name}={value}"
    escaped = re.sub(r'(["$`\\])', r"\\\1", value)
    return f'{name}="{escaped}"'
