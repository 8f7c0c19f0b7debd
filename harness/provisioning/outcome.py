"""What a run says about itself: steps, decision, record and exit code, as JSON."""

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
    """One step as it went; `detail` is a sentence, or None where there is nothing to add."""

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
    """The whole of one run."""

    command: str
    exit_code: ExitCode
    error: str | None
    decision: Decision | None
    steps: tuple[StepReport, ...]
    record: Record | None
    kernel: str | None
    version: str

    def to_json(self) -> str:
        """Render the document that the host reads from the node."""
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
