"""What provisioning and cloud-init say of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.expect.claim import claim, refusal

if TYPE_CHECKING:
    from harness.evidence import Evidence, ProvisioningOutcome, Step


def provisioned(evidence: Evidence, *, exit_code: int = 0) -> None:
    """Expect provisioning to have ended with `exit_code`, in its outcome and for the shell."""
    outcome = _outcome(evidence)
    claim(
        outcome.exit_code == exit_code,
        f"Provisioning was expected to end with {exit_code}, but it ended with "
        f"{outcome.exit_code} ({outcome.exit_name}): {outcome.error or 'no error given'}.",
        evidence,
    )
    claim(
        evidence.exit_code == exit_code,
        f"The shell was expected to see exit code {exit_code}, but saw {evidence.exit_code}.",
        evidence,
    )


def cloud_init_clean(evidence: Evidence) -> None:
    """Expect cloud-init to have run from the NoCloud seed without an error."""
    result = evidence.cloud_init
    claim(result is not None, "cloud-init was expected to leave a result.", evidence)
    if result is not None:
        claim(
            "NoCloud" in result.datasource,
            f"cloud-init was expected to use NoCloud, but used '{result.datasource}'.",
            evidence,
        )
        claim(
            not result.errors,
            f"cloud-init was expected to report no error, but reported {list(result.errors)}.",
            evidence,
        )


def cloud_init_reports_failure(evidence: Evidence) -> None:
    """Expect cloud-init to have passed on that provisioning failed."""
    result = evidence.cloud_init
    claim(
        result is not None and bool(result.errors),
        "cloud-init was expected to report an error, but reported none.",
        evidence,
    )


def decided(evidence: Evidence, *, action: str, reason: str) -> None:
    """Expect the boot's decision, in the outcome and on the log line alike."""
    outcome = _outcome(evidence)
    claim(
        (outcome.action, outcome.reason) == (action, reason),
        f"The decision was expected to be '{action}' for '{reason}', but it was "
        f"'{outcome.action}' for '{outcome.reason}'.",
        evidence,
    )
    prebake_line(evidence, event="decision", action=action, reason=reason)


def prebake_line(evidence: Evidence, **fields: str) -> None:
    """Expect an `AKS_GPU_PREBAKE` line with these fields."""
    lines = evidence.prebake_lines
    claim(
        any(fields.items() <= line.items() for line in lines),
        f"An AKS_GPU_PREBAKE line with {fields} was expected, but there were {lines}.",
        evidence,
    )


def step_of(evidence: Evidence, name: str) -> Step:
    """Return the step `name`, which is expected to have been reached."""
    steps = _outcome(evidence).steps
    for step in steps:
        if step.name == name:
            return step
    raise refusal(
        f"The step '{name}' was expected, but the steps were {[step.name for step in steps]}.",
        evidence,
    )


def step_failed(evidence: Evidence, name: str) -> None:
    """Expect the step `name` to have failed."""
    step = step_of(evidence, name)
    claim(
        step.status == "failed",
        f"The step '{name}' was expected to have failed, but it is '{step.status}'.",
        evidence,
    )


def log_line(evidence: Evidence, text: str) -> None:
    """Expect provisioning to have logged a line that contains `text`."""
    log = evidence.file(CLOUD_INIT_OUTPUT_PATH) or ""
    claim(text in log, f"A log line with '{text}' was expected, but there was none.", evidence)


def events_recorded(evidence: Evidence, *tasks: str) -> None:
    """Expect an event file for each task name."""
    recorded = evidence.event_tasks
    missing = [task for task in tasks if task not in recorded]
    claim(
        not missing,
        f"Event files for {missing} were expected, but there are those for {recorded}.",
        evidence,
    )


def _outcome(evidence: Evidence) -> ProvisioningOutcome:
    outcome = evidence.outcome
    if outcome is None:
        raise refusal(
            "Provisioning was expected to leave an outcome, but it left none: it did not run, or "
            "died; cloud-init's output tells.",
            evidence,
        )
    return outcome
