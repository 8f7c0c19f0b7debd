"""The outcome of a run as JSON."""

from __future__ import annotations

import json

from harness.provisioning.exit_codes import ExitCode
from harness.provisioning.outcome import Outcome, StepReport, StepStatus
from harness.provisioning.prebake import Action, Decision, Reason, Record
from suites.fakes.clock import EPOCH


def test_outcome_is_json_with_all_needed_facts() -> None:
    outcome = Outcome(
        command="boot",
        exit_code=ExitCode.GPU_DEVICE_PLUGIN_START_FAIL,
        error="No.",
        decision=Decision(action=Action.INSTALL, reason=Reason.KERNEL),
        steps=(
            StepReport(
                name="pull",
                status=StepStatus.FAILED,
                started=EPOCH,
                duration_s=1.23456,
                detail="It failed.",
            ),
        ),
        record=Record(kernel="k", driver_version="1.2", driver_kind="cuda", arch="x86_64"),
        kernel="6.1",
        version="0.1.0",
    )

    text = outcome.to_json()

    assert text.endswith("}\n")
    assert text.startswith('{\n  "schema": 1,\n')
    assert json.loads(text) == {
        "schema": 1,
        "command": "boot",
        "exit_code": 86,
        "exit_name": "GPU_DEVICE_PLUGIN_START_FAIL",
        "error": "No.",
        "decision": {"action": "install", "reason": "kernel"},
        "steps": [
            {
                "name": "pull",
                "status": "failed",
                "started": "2026-08-21T12:00:00.000+00:00",
                "duration_s": 1.235,
                "detail": "It failed.",
            }
        ],
        "record": {
            "kernel": "k",
            "driver_version": "1.2",
            "driver_kind": "cuda",
            "arch": "x86_64",
        },
        "kernel": "6.1",
        "version": "0.1.0",
    }


def test_unknown_facts_are_null() -> None:
    outcome = Outcome(
        command="bake",
        exit_code=ExitCode.OK,
        error=None,
        decision=None,
        steps=(),
        record=None,
        kernel=None,
        version="0.1.0",
    )

    document = json.loads(outcome.to_json())

    assert [document[key] for key in ("error", "decision", "record", "kernel")] == [None] * 4
    assert document["steps"] == []
