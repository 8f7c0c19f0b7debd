"""Expectations on the reports of provisioning and cloud-init.

If a provisioner ran more than once, the expectations check the latest run, or run number `run`; the
first run has number 1. The expectations raise HarnessError if there is no run with the number
`run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import BadInputError, HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.expect.failure import failure, require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.evidence import Evidence
    from harness.evidence.outcome import ProvisioningOutcome, ReportedStep


def provisioned(evidence: Evidence, *, exit_code: int | str = 0, run: int | None = None) -> None:
    """Expect the shell, and the outcome file if it has an exit code, to report `exit_code`.

    `exit_code` is a number, or a name that the provisioner declares. Raises BadInputError for a
    name that is not declared.
    """
    evidence = evidence.of_run(run)
    declared = evidence.provisioner
    exit_code = declared.exit_code(exit_code)
    file = declared.outcome.file
    has_exit_code = file is not None and file.exit_code is not None
    outcome = _outcome(evidence) if has_exit_code else evidence.outcome
    if outcome is not None and outcome.exit_code is not None:
        name = outcome.exit_name or declared.outcome.exit_codes.get(outcome.exit_code)
        error = _clause(outcome.error) or ("no error given" if outcome.exit_code else "")
        require(
            outcome.exit_code == exit_code,
            f"Provisioning was expected to end with {declared.named(exit_code)}, but it ended with "
            f"{outcome.exit_code}{f' ({name})' if name else ''}{f': {error}' if error else ''}.",
            evidence,
        )
        require(
            evidence.exit_code == exit_code,
            f"The provisioner's command was expected to end with exit code {exit_code}, but ended with "
            f"{'no exit code' if evidence.exit_code is None else evidence.exit_code}.",
            evidence,
        )
        return
    error = _clause(None if outcome is None else outcome.error)
    require(
        evidence.exit_code == exit_code,
        f"Provisioner '{declared.name}' was expected to end with {declared.named(exit_code)}, but "
        f"it ended with {declared.named(evidence.exit_code)}"
        f"{f': {error}' if error else ''}. Read the output of cloud-init.",
        evidence,
    )


def _clause(error: str | None) -> str:
    """Return an error as a clause of a sentence, or an empty text if there is no error."""
    return (error or "").rstrip(".")


def cloud_init_clean(evidence: Evidence) -> None:
    """Expect cloud-init to have run from the NoCloud seed without an error."""
    result = evidence.cloud_init
    require(
        result is not None, "A result of cloud-init was expected, but there is none.", evidence
    )
    if result is not None:
        require(
            "NoCloud" in result.datasource,
            f"cloud-init was expected to use NoCloud, but used '{result.datasource}'.",
            evidence,
        )
        require(
            not result.errors,
            f"cloud-init was expected to report no error, but reported {list(result.errors)}.",
            evidence,
        )


def cloud_init_reports_failure(evidence: Evidence) -> None:
    """Expect cloud-init to report the failure of provisioning."""
    result = evidence.cloud_init
    require(
        result is not None and bool(result.errors),
        "cloud-init was expected to report an error, but reported none.",
        evidence,
    )


def decided(
    evidence: Evidence, action: str, *, reason: str | None = None, run: int | None = None
) -> None:
    """Expect the declared outcome file and log to say that provisioning made the decision `action`.

    Without `reason`, any reason for the decision is accepted. Raises BadInputError if the
    provisioner declares no decision.
    """
    evidence = evidence.of_run(run)
    declared = evidence.provisioner.outcome
    in_file = declared.file is not None and declared.file.decision is not None
    in_log = declared.log is not None and declared.log.decision is not None
    if not in_file and not in_log:
        raise evidence.provisioner.missing("file.decision", "log.decision")
    if in_file:
        outcome = _outcome(evidence)
        _require_decision(evidence, (action, reason), (outcome.action, outcome.reason), "")
    if in_log:
        line = evidence.log_decision
        found = (None, None) if line is None else (line.decision, line.reason)
        place = f" by the log '{evidence.log_path}'"
        _require_decision(evidence, (action, reason), found, place)


def _require_decision(
    evidence: Evidence,
    wanted: tuple[str, str | None],
    found: tuple[str | None, str | None],
    place: str,
) -> None:
    action, reason = wanted
    if reason is None:
        found = (found[0], None)
    require(
        found == wanted,
        f"The decision{place} was expected to be {_decision(action, reason)}, but it was "
        f"{_decision(*found)}.",
        evidence,
    )


def _decision(action: str | None, reason: str | None) -> str:
    if action is None:
        return "none"
    return f"'{action}'" if reason is None else f"'{action}' with reason '{reason}'"


def prebake_line(evidence: Evidence, **fields: str) -> None:
    """Expect an `AKS_GPU_PREBAKE` line with these fields, in the output of the latest run.

    To check an earlier run, pass `evidence.of_run(number)` as `evidence`.
    """
    lines = evidence.prebake_lines
    if any(fields.items() <= line.items() for line in lines):
        return
    evidence.refuse_cut(CLOUD_INIT_OUTPUT_PATH)
    if not lines:
        raise failure(
            f"An AKS_GPU_PREBAKE line with {_pairs(fields)} was expected, but there is none.",
            evidence,
        )
    # The message shows the nearest line. Lines with the same event come first, then lines with more
    # equal fields, then later lines.
    nearest = max(
        reversed(lines),
        key=lambda line: (line.get("event") == fields.get("event"), _agreeing(line, fields)),
    )
    differing = {key: value for key, value in fields.items() if nearest.get(key) != value}
    raise failure(
        f"An AKS_GPU_PREBAKE line with {_pairs(differing)} was expected, but the nearest of "
        f"{len(lines)} lines has "
        f"{_pairs({key: nearest.get(key, '(none)') for key in differing})}: {_pairs(nearest)}.",
        evidence,
    )


def _agreeing(line: Mapping[str, str], fields: Mapping[str, str]) -> int:
    return sum(line.get(key) == value for key, value in fields.items())


def _pairs(fields: Mapping[str, str]) -> str:
    return "'" + " ".join(f"{key}={value}" for key, value in fields.items()) + "'"


def step_of(evidence: Evidence, name: str, *, run: int | None = None) -> ReportedStep:
    """Expect the step `name` in the outcome file, or else in the log, and return the step.

    Raises BadInputError if the provisioner declares no steps.
    """
    evidence = evidence.of_run(run)
    steps = _steps(evidence)
    for step in steps:
        if step.name == name:
            return step
    raise failure(
        f"The step '{name}' was expected, but the steps were {[step.name for step in steps]}.",
        evidence,
    )


def step_failed(evidence: Evidence, name: str, *, run: int | None = None) -> None:
    """Expect the step `name` to have failed.

    Raises HarnessError if the provisioner does not report how the step ended.
    """
    step = step_of(evidence, name, run=run)
    if step.status is None:
        raise HarnessError(
            f"Provisioner '{evidence.provisioner.name}' does not report how the step '{name}' "
            f"ended; declare 'status' of the steps in '{evidence.provisioner.source}'.",
            evidence=evidence.folder,
        )
    require(
        step.status == evidence.provisioner.outcome.failed_status,
        f"The step '{name}' was expected to have failed, but its status is '{step.status}'.",
        evidence,
    )


def run_ended_at(evidence: Evidence, name: str, *, run: int | None = None) -> None:
    """Expect the step `name` to have failed, and this failure to have ended the run.

    The error in the outcome file has to begin with "Step 'NAME' failed.". In contrast,
    `step_failed` accepts a failed step even if the run continued after the failure. Raises
    BadInputError if the provisioner declares no error in the outcome file. Raises HarnessError in
    the same cases as `step_failed`.
    """
    step_failed(evidence, name, run=run)
    evidence = evidence.of_run(run)
    file = evidence.provisioner.outcome.file
    if file is None or file.error is None:
        raise evidence.provisioner.missing("file.error")
    error = _outcome(evidence).error or "none"
    first_line, *_ = error.splitlines()
    require(
        first_line.startswith(f"Step '{name}' failed."),
        f"The run was expected to end at the step '{name}', but the run's error is: {first_line}",
        evidence,
    )


def log_line(evidence: Evidence, text: str, *, run: int | None = None) -> None:
    """Expect a line of the provisioner's log that contains `text`.

    The log is the declared log, or else the output of the provisioner. Raises BadInputError for a
    text that is empty or has several lines.
    """
    _require_part_of_line("log_line", text)
    evidence = evidence.of_run(run)
    if text in evidence.log:
        return
    require(
        text in evidence.whole_log,
        f"A line with '{text}' was expected in '{evidence.log_path}', but there was none.",
        evidence,
    )


def events_recorded(evidence: Evidence, *names: str, run: int | None = None) -> None:
    """Expect the provisioner to have recorded an event of each of these names.

    Raises BadInputError if the provisioner declares no events, or no name is given.
    """
    _require_names("events_recorded", names)
    evidence = evidence.of_run(run)
    recorded = evidence.event_names
    missing = [name for name in names if name not in recorded]
    require(
        not missing,
        f"Events named {missing} were expected, but the names of all events are {recorded}.",
        evidence,
    )


def no_log_line(evidence: Evidence, text: str, *, run: int | None = None) -> None:
    """Expect no line of the provisioner's log to contain `text`.

    The log is the declared log, or else the output of the provisioner. Raises HarnessError if the
    log is truncated or missing, since the line may then be lost. Raises BadInputError for a text
    that is empty or has several lines.
    """
    _require_part_of_line("no_log_line", text)
    evidence = evidence.of_run(run)
    found = next((line for line in evidence.log.splitlines() if text in line), None)
    require(
        found is None,
        f"No line with '{text}' was expected in '{evidence.log_path}', but there is: {found}",
        evidence,
    )
    if not evidence.whole_log:
        raise HarnessError(
            f"It is unknown whether '{evidence.log_path}' has a line with '{text}': the log is empty or "
            "missing. Before this expectation, expect a line that every run logs (`log_line`).",
            evidence=evidence.folder,
        )


def no_event_recorded(evidence: Evidence, *names: str, run: int | None = None) -> None:
    """Expect the provisioner to have recorded no event with one of these names.

    Raises BadInputError if the provisioner declares no events, or no name is given. Raises
    HarnessError if the provisioner recorded no events at all, since the events may then be lost.
    """
    _require_names("no_event_recorded", names)
    evidence = evidence.of_run(run)
    recorded = evidence.event_names
    found = [name for name in names if name in recorded]
    require(
        not found,
        f"No events named {found} were expected, but they are among the recorded events {recorded}.",
        evidence,
    )
    if not recorded:
        raise HarnessError(
            f"It is unknown whether events named {list(names)} were recorded: there is no event at all in "
            f"'{evidence.provisioner.events.path}'.",
            evidence=evidence.folder,
        )


def _require_names(expectation: str, names: Sequence[str]) -> None:
    """Raise BadInputError for a call without names, since every node would meet such an expectation."""
    if not all(names) or not names:
        raise BadInputError(
            f"The names of events were expected, but these were given: {list(names)}.",
            source=expectation,
            key="names",
        )


def _require_part_of_line(expectation: str, text: str) -> None:
    """Raise BadInputError for an empty text, which is in every line, and for a text of several lines."""
    if not text or len(text.splitlines()) > 1 or text.endswith("\n"):
        raise BadInputError(
            f"A part of one line was expected, but {text!r} was given.",
            source=expectation,
            key="text",
        )


def _steps(evidence: Evidence) -> Sequence[ReportedStep]:
    steps = evidence.steps
    # If the declared file is missing, the error about the missing outcome is more helpful.
    return _outcome(evidence).steps if steps is None else steps


def _outcome(evidence: Evidence) -> ProvisioningOutcome:
    outcome = evidence.outcome
    if outcome is None:
        raise failure(
            "An outcome of provisioning was expected, but there is none: the provisioner did not "
            "run, or was killed. Read the output of cloud-init.",
            evidence,
        )
    return outcome
