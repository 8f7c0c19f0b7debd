"""Expectations on what provisioning and cloud-init report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.expect.failure import failure, require

if TYPE_CHECKING:
    from harness.evidence import Evidence, ProvisioningOutcome, ReportedStep


def provisioned(evidence: Evidence, *, exit_code: int = 0) -> None:
    """Expect provisioning to have ended with `exit_code`, in its outcome and in the shell."""
    outcome = _outcome(evidence)
    require(
        outcome.exit_code == exit_code,
        f"Provisioning was expected to end with {exit_code}, but it ended with "
        f"{outcome.exit_code} ({outcome.exit_name}): {outcome.error or 'no error given'}.",
        evidence,
    )
    require(
        evidence.exit_code == exit_code,
        f"The shell was expected to get exit code {exit_code}, but got {evidence.exit_code}.",
        evidence,
    )


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


def decided(evidence: Evidence, *, action: str, reason: str) -> None:
    """Expect this decision of the boot, in the outcome and in the log line."""
    outcome = _outcome(evidence)
    require(
        (outcome.action, outcome.reason) == (action, reason),
        f"The decision was expected to be '{action}' with reason '{reason}', but it was "
        f"'{outcome.action}' with reason '{outcome.reason}'.",
        evidence,
    )
    prebake_line(evidence, event="decision", action=action, reason=reason)


def prebake_line(evidence: Evidence, **fields: str) -> None:
    """Expect an `AKS_GPU_PREBAKE` line with these fields."""
    lines = evidence.prebake_lines
    require(
        any(fields.items() <= line.items() for line in lines),
        f"An AKS_GPU_PREBAKE line with {fields} was expected, but there were {lines}.",
        evidence,
    )


def step_of(evidence: Evidence, name: str) -> ReportedStep:
    """Expect the step `name` in the outcome, and return it."""
    steps = _outcome(evidence).steps
    for step in steps:
        if step.name == name:
            return step
    raise failure(
        f"The step '{name}' was expected, but the steps were {[step.name for step in steps]}.",
        evidence,
    )


def step_failed(evidence: Evidence, name: str) -> None:
    """Expect the step `name` to have failed."""
    step = step_of(evidence, name)
    require(
        step.status == "failed",
        f"The step '{name}' was expected to have failed, but its status is '{step.status}'.",
        evidence,
    )


def log_line(evidence: Evidence, text: str) -> None:
    """Expect a log line of provisioning that contains `text`."""
    log = evidence.file(CLOUD_INIT_OUTPUT_PATH) or ""
    require(text in log, f"A log line with '{text}' was expected, but there was none.", evidence)


def events_recorded(evidence: Evidence, *tasks: str) -> None:
    """Expect an event file for each task name."""
    recorded = evidence.event_tasks
    missing = [task for task in tasks if task not in recorded]
    require(
        not missing,
        f"Event files for {missing} were expected, but there are only those for {recorded}.",
        evidence,
    )


def _outcome(evidence: Evidence) -> ProvisioningOutcome:
    outcome = evidence.outcome
    if outcome is None:
        raise failure(
            "An outcome of provisioning was expected, but there is none: it did not run, or it was "
            "killed. Read the output of cloud-init.",
            evidence,
        )
    return outcome
