"""The outcome of a run as JSON: steps, decision, record and exit code."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt

    from .exit_codes import ExitCode
    from .prebake import Decision, Record

SCHEMA = 1


class StepStatus(enum.Enum):
    """How one step ended."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The report of one step; `detail` is a sentence, or None."""

    name: str
    status: StepStatus
    started: dt.datetime
    duration_s: float
    detail: str | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "status": self.status.value,
            "started": self.started.isoformat(timespec="milliseconds"),
            "duration_s": round(self.duration_s, 3),
            "detail": self.detail,
        }


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one run."""

    command: str
    """The command that ran."""
    exit_code: ExitCode
    """The exit code of the run."""
    error: str | None
    """The reason of the failure, or null."""
    decision: Decision | None
    """Action and reason, or null if nothing was decided."""
    steps: tuple[StepReport, ...]
    """Each step: status (`done`, `skipped`, `failed`), start, duration and detail."""
    record: Record | None
    """The prebake record at the end, or null."""
    kernel: str | None
    """The running kernel."""
    version: str
    """The version of provisioning."""

    def to_json(self) -> str:
        """Render the JSON document that the test host reads from the node."""
        document = {
            "schema": SCHEMA,
            "command": self.command,
            "exit_code": int(self.exit_code),
            "exit_name": self.exit_code.name,
            "error": self.error,
            "decision": None if self.decision is None else self.decision.to_json(),
            "steps": [step.to_json() for step in self.steps],
            "record": None if self.record is None else self.record.to_json(),
            "kernel": self.kernel,
            "version": self.version,
        }
        return json.dumps(document, indent=2) + "\n"
