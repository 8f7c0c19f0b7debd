"""Pure functions that convert a provisioner's timed steps and events to steps of a report."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence.outcome import parse_timed_events
from harness.steps import InnerStep, nested

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.evidence import Evidence


def inner_steps(evidence: Evidence) -> tuple[InnerStep, ...]:
    """Return a run's steps and events, nested by their times; the times are of the guest's clock.

    Steps and events without declared times are left out. Steps and events that can't be read are
    left out, so that the report does not fail.
    """
    found: list[InnerStep] = []
    with contextlib.suppress(HarnessError):
        found += _steps(evidence)
    with contextlib.suppress(HarnessError):
        found += _events(evidence)
    return nested(found)


def _steps(evidence: Evidence) -> Iterator[InnerStep]:
    failed = evidence.provisioner.outcome.failed_status
    for step in evidence.steps or ():
        if step.started_s is None or step.duration_s is None:
            continue
        yield InnerStep(
            title=step.name,
            start_s=step.started_s,
            stop_s=step.started_s + step.duration_s,
            error=(step.detail or f"status '{failed}'") if step.status == failed else None,
            is_skipped=step.status == "skipped",
            details={} if step.detail is None else {"detail": step.detail},
        )


def _events(evidence: Evidence) -> Iterator[InnerStep]:
    declared = evidence.provisioner.events
    for path, text in evidence.event_files.items():
        for name, start_s, stop_s in parse_timed_events(text, declared, path):
            yield InnerStep(title=name, start_s=start_s, stop_s=stop_s)
