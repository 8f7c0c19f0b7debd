"""Pure functions that read the outcome file, the events and the log lines that a provisioner declares."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.foreign_json import parse_json
from harness.provisioner.outcome import EventFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioner.outcome import EventFiles, OutcomeFile, StepList


#: The limit for reported times and durations, in seconds: some 3000 years.
MOST_S = 1e11
_EXIT_CODE = re.compile(r"-?[0-9]{1,10}")
#: A regular expression is applied to this many characters of a line, because the time may grow
#: with the square of this number.
_LONGEST_LINE = 16 << 10


@dataclass(frozen=True, kw_only=True)
class ReportedStep:
    """One step of provisioning, as the provisioner reports it.

    `status`, `duration_s`, `detail` and `started_s` are None if they are not reported. `started_s`
    is a time of the node's clock, in seconds since the epoch.
    """

    name: str
    status: str | None = None
    duration_s: float | None = None
    detail: str | None = None
    started_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReportedDecision:
    """A decision that the provisioner logged; `reason` may be missing."""

    decision: str
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProvisioningOutcome:
    """The content of a provisioner's outcome file; parts that are not declared are None or empty."""

    exit_code: int | None = None
    exit_name: str | None = None
    error: str | None = None
    action: str | None = None
    reason: str | None = None
    steps: tuple[ReportedStep, ...] = ()

    @classmethod
    def from_json(cls, text: str, file: OutcomeFile) -> ProvisioningOutcome:
        """Parse the outcome file.

        Raises HarnessError if the text does not have the declared form.
        """
        try:
            document = parse_json(text)
            if not isinstance(document, dict):
                raise TypeError("it is not a JSON object")  # noqa: TRY301 - all errors get the same form of message
            return cls(
                exit_code=None
                if file.exit_code is None
                else parse_exit_code(str(_at(document, file.exit_code))),
                exit_name=_text(document, file.exit_name),
                error=_text(document, file.error),
                action=_text(document, file.decision),
                reason=_text(document, file.reason),
                steps=() if file.steps is None else tuple(_steps(document, file.steps)),
            )
        except (ValueError, LookupError, TypeError) as error:
            raise HarnessError(
                f"The outcome of provisioning in '{file.path}' has another format than the provisioner "
                f"declares in 'outcome.file' ({error}): {text!r}."
            ) from error


def parse_exit_code(text: str) -> int:
    """Return a decimal number; raises ValueError for other text, even for `0_0`, which `int` accepts."""
    if _EXIT_CODE.fullmatch(text.strip()) is None:
        raise ValueError(f"{text!r} is not an exit code")
    return int(text)


def _steps(document: object, declared: StepList) -> Iterator[ReportedStep]:
    steps = _at(document, declared.at)
    if not isinstance(steps, list):
        raise TypeError(f"'{declared.at}' is not a list")
    for step in steps:
        duration = _text(step, declared.duration_s)
        yield ReportedStep(
            name=_shown(_at(step, declared.name)),
            status=_text(step, declared.status),
            duration_s=None if duration is None else _finite(duration),
            detail=_text(step, declared.detail),
            started_s=_moment(_text(step, declared.started)),
        )


def parse_stamp(text: str) -> float | None:
    """Return an ISO 8601 time as seconds since the epoch, or None if the text is not such a time.

    A time without a zone is in UTC.
    """
    try:
        stamp = dt.datetime.fromisoformat(re.sub(r"Z$", "+00:00", text))
        return stamp.replace(tzinfo=stamp.tzinfo or dt.timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None


def _at(document: object, pointer: str) -> object:
    """Return the value at a JSON pointer; raises LookupError if there is no value."""
    value = document
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise LookupError(f"it has no '{pointer}'")
    return value


def _text(document: object, pointer: str | None) -> str | None:
    """Return the text at a JSON pointer, or None if there is no value at the pointer or `pointer` is None."""
    if pointer is None:
        return None
    try:
        value = _at(document, pointer)
    except LookupError:
        return None
    return None if value is None else _shown(value)


def _shown(value: object) -> str:
    """Return a text unchanged, and any other value as JSON: `true`, not `True`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse_events(text: str, declared: EventFiles, name: str) -> list[str]:
    """Return the names of the events in the event file `name`, in the order of the file.

    Raises HarnessError if the event file does not have the declared form; the message names the
    file.
    """
    try:
        return [_shown(_at(parse_json(line), declared.name)) for line in _events(text, declared)]
    except (ValueError, LookupError) as error:
        raise HarnessError(
            f"The event file '{name}' has another format than the provisioner declares in "
            f"'outcome.events'; the file contains {text!r}."
        ) from error


def _events(text: str, declared: EventFiles) -> list[str]:
    # Split only at "\n": other line ends, such as U+2028, may be in a string of JSON.
    lines = [text] if declared.format is EventFormat.JSON else text.split("\n")
    return [line for line in lines if line.strip()]


def parse_timed_events(
    text: str, declared: EventFiles, name: str
) -> list[tuple[str, float, float]]:
    """Return the name of each event in an event file, with start and end in seconds since the epoch.

    The list is empty if the provisioner does not declare the times of its events. Raises
    HarnessError in the same cases as `parse_events`.
    """
    found: list[tuple[str, float, float]] = []
    if declared.started is None or declared.ended is None:
        return found
    names = parse_events(text, declared, name)
    for event, line in zip(names, _events(text, declared), strict=True):
        try:
            document = parse_json(line)
            start_s = _moment(_text(document, declared.started))
            stop_s = _moment(_text(document, declared.ended))
        except (ValueError, LookupError) as error:
            raise HarnessError(
                f"The event file '{name}' has another format than the provisioner declares in "
                f"'outcome.events'; the file contains {text!r}."
            ) from error
        if start_s is not None and stop_s is not None:
            found.append((event, start_s, stop_s))
    return found


def _moment(text: str | None) -> float | None:
    """Convert a number or an ISO 8601 time to seconds since the epoch.

    A time without a zone is in UTC. Raises ValueError if the text is neither a number nor an ISO
    8601 time.
    """
    if text is None:
        return None
    try:
        return _finite(text)
    except ValueError:
        stamp = parse_stamp(text)
        if stamp is None:
            raise
        return stamp


def _finite(text: str) -> float:
    """Return a text as a number of seconds; raises ValueError for `nan`, `inf` and text that is no number."""
    number = float(text)
    # No real time or duration reaches the limit, and a report can convert all smaller times to
    # milliseconds.
    if not abs(number) < MOST_S:
        raise ValueError(f"{text} is not a number of seconds")
    return number


def parse_log_decision(text: str, pattern: str) -> ReportedDecision | None:
    """Return the last decision in a log, or None if the log has no decision."""
    for fields in _matches(text, pattern, "decision"):
        return ReportedDecision(decision=fields["decision"], reason=fields.get("reason"))
    return None


def parse_log_steps(text: str, pattern: str) -> list[ReportedStep]:
    """Return the steps in a log, each parsed from the last line about that step; the latest step is first.

    Raises HarnessError if a duration is not a number.
    """
    steps: dict[str, ReportedStep] = {}
    for fields in _matches(text, pattern, "name"):
        duration = fields.get("duration_s")
        try:
            duration_s = None if duration is None else _finite(duration)
        except ValueError:
            raise HarnessError(
                f"The log says that the step '{fields['name']}' took {duration!r}, which is not "
                "a number of seconds; correct the group 'duration_s' of 'outcome.log.step'."
            ) from None
        step = ReportedStep(
            name=fields["name"],
            status=fields.get("status"),
            duration_s=duration_s,
            detail=fields.get("detail"),
        )
        steps.setdefault(step.name, step)
    return list(steps.values())


def _matches(text: str, pattern: str, main: str) -> Iterator[dict[str, str]]:
    """Yield the groups of the regular expression `pattern` for each matching line, the last line first."""
    expression = re.compile(pattern)
    for line in reversed(re.split(r"[\r\n]+", text)):
        found = expression.search(line, 0, _LONGEST_LINE)
        if found is not None:
            groups = found.groupdict() if expression.groupindex else {main: found[1]}
            present = {name: value for name, value in groups.items() if value is not None}
            if main in present:
                yield present
