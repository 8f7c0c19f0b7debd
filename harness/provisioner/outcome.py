"""How to read the result of a provisioner: exit codes, a JSON file, event files, log lines.

The fields of this module's classes are the keys below `outcome` in a provisioner's YAML file. Each
evidence folder contains a copy of the provisioner's declaration, so that the folder can be judged
without the provisioner's project.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field

FORBID: pydantic.ConfigDict = pydantic.ConfigDict(extra="forbid")

_POINTER = re.compile(r"(/([^~/]|~[01])*)+")


def _pointer(value: str) -> str:
    if not _POINTER.fullmatch(value):
        raise ValueError("A JSON pointer (RFC 6901), such as '/decision/action', is expected here")
    return value


def _path(value: str) -> str:
    if not value.startswith("/") or value.endswith("/") or {"..", "."} & set(value.split("/")):
        raise ValueError("The absolute path of a file in the machine is expected here")
    return value


def _expression(value: str, known: frozenset[str], main: str) -> str:
    try:
        # The value becomes part of a longer expression, so it must not set flags for the whole
        # expression.
        compiled = re.compile(f"(?:{value})")
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"This is not a regular expression ({error})") from error
    if compiled.search(""):
        raise ValueError("The regular expression here must not match an empty line")
    names = frozenset(compiled.groupindex)
    if not names <= known or (main not in names and compiled.groups != 1):
        others = ", ".join(f"'{name}'" for name in sorted(known - {main}))
        raise ValueError(
            f"A regular expression with one group, or with a group '(?P<{main}>…)' and other "
            f"groups named {others}, is expected here"
        )
    return value


def _exit_name(value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("A name of this exit code, such as no-driver, is expected here")
    return value


def _decision(value: str) -> str:
    return _expression(value, frozenset({"decision", "reason"}), "decision")


def _step(value: str) -> str:
    return _expression(value, frozenset({"name", "status", "duration_s", "detail"}), "name")


Pointer = Annotated[str, AfterValidator(_pointer)]
GuestPath = Annotated[str, AfterValidator(_path)]
ExitName = Annotated[str, BeforeValidator(_exit_name)]
ExitCodeNumber = Annotated[int, Field(ge=0, le=255)]


class EventFormat(Enum):
    """The format of an event file."""

    JSON = "json"
    JSON_LINES = "json-lines"


@dataclass(frozen=True, kw_only=True)
class StepList:
    """The list of steps in the outcome file; JSON pointers except `at` are relative to a step."""

    __pydantic_config__ = FORBID

    at: Pointer
    """JSON pointer to the list."""
    name: Pointer = "/name"
    """JSON pointer in a step to its name."""
    status: Pointer | None = None
    """JSON pointer in a step to its status, which says how the step ended."""
    duration_s: Pointer | None = None
    """JSON pointer in a step to its duration in seconds."""
    detail: Pointer | None = None
    """JSON pointer in a step to a sentence about the step."""
    started: Pointer | None = None
    """JSON pointer in a step to its start: ISO 8601, or seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class OutcomeFile:
    """A JSON file where the provisioner records its result."""

    __pydantic_config__ = FORBID

    path: GuestPath
    """Path of the file in the machine."""
    exit_code: Pointer | None = None
    """JSON pointer to the recorded exit code, which has to equal the command's exit code."""
    exit_name: Pointer | None = None
    """JSON pointer to the name of the exit code."""
    error: Pointer | None = None
    """JSON pointer to the reason of a failure."""
    decision: Pointer | None = None
    """JSON pointer to the decision."""
    reason: Pointer | None = None
    """JSON pointer to the reason of the decision."""
    steps: StepList | None = None
    """The steps that were taken."""


@dataclass(frozen=True, kw_only=True)
class EventFiles:
    """Files where the provisioner records events."""

    __pydantic_config__ = FORBID

    path: GuestPath
    """Path of the files in the machine; `*` and `?` match within a name."""
    name: Pointer
    """JSON pointer in an event to its name."""
    format: EventFormat = EventFormat.JSON
    """`json`: each file has one event. `json-lines`: each line is one event."""
    started: Pointer | None = None
    """JSON pointer in an event to its start: ISO 8601, or seconds since the epoch."""
    ended: Pointer | None = None
    """JSON pointer in an event to its end: ISO 8601, or seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class LogPatterns:
    """Regular expressions that are searched for in each line of the provisioner's log."""

    __pydantic_config__ = FORBID

    path: GuestPath | None = None
    """Path of the log in the machine; by default the command's output in cloud-init's log."""
    decision: Annotated[str, AfterValidator(_decision)] | None = None
    """Matches a line about the decision, by one group or by the groups `decision` and `reason`."""
    step: Annotated[str, AfterValidator(_step)] | None = None
    """Matches a line about a step, by one group or by the groups `name`, `status`, `duration_s`, `detail`."""


@dataclass(frozen=True, kw_only=True)
class OutcomeDeclaration:
    """How to read a provisioner's result, in addition to the exit code of its command."""

    __pydantic_config__ = FORBID

    exit_codes: Mapping[ExitCodeNumber, ExitName] = field(default_factory=dict)
    """Names of exit codes, for messages."""
    file: OutcomeFile | None = None
    events: EventFiles | None = None
    log: LogPatterns | None = None
    failed_status: str = "failed"
    """The status of a step that failed."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths, or patterns of paths, of all files that contain the result."""
        declared = (self.file, self.events, self.log)
        return tuple(each.path for each in declared if each is not None and each.path is not None)
