"""The steps and events that a provisioner reported, as steps of a report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harness.evidence import Evidence
from harness.evidence.reported_steps import inner_steps
from harness.provisioner.gpu_node import EVENTS_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

OUTCOME = "files/var/lib/gpu-node/outcome.json"


def a_step(name: str, start: int, seconds: float, status: str = "done") -> dict[str, object]:
    return {
        "name": name,
        "status": status,
        "started": f"1970-01-01T00:00:{start:02}.000+00:00",
        "duration_s": seconds,
        "detail": f"{name} {status}" if status != "done" else None,
    }


def write_event(folder: Path, task: str, start: int, end: int) -> None:
    event = {
        "TaskName": task,
        "Timestamp": f"1970-01-01 00:00:{start:02}.000",
        "OperationId": f"1970-01-01 00:00:{end:02}.000",
    }
    path = folder / "files" / EVENTS_FOLDER.lstrip("/") / f"{start}000.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(event))


def test_event_is_nested_in_the_step_during_which_it_occurred(tmp_path: Path) -> None:
    steps = [
        a_step("build", 10, 20),
        a_step("check", 30, 1, "skipped"),
        a_step("start", 31, 5, "failed"),
        {"name": "untimed", "status": "done", "started": None, "duration_s": None, "detail": None},
    ]
    (tmp_path / OUTCOME).parent.mkdir(parents=True)
    (tmp_path / OUTCOME).write_text(json.dumps({"exit_code": 1, "steps": steps}))
    write_event(tmp_path, "AKS.CSE.dkms", 12, 14)

    build, check, start = inner_steps(Evidence(tmp_path))

    assert (build.title, build.start_s, build.stop_s) == ("build", 10.0, 30.0)
    assert [(each.title, each.start_s) for each in build.inner] == [("AKS.CSE.dkms", 12.0)]
    assert (check.is_skipped, check.error) == (True, None)
    assert start.error == "start failed"


def test_events_are_top_level_steps_if_the_outcome_is_missing_or_damaged(
    tmp_path: Path,
) -> None:
    write_event(tmp_path, "AKS.CSE.dkms", 12, 14)
    assert [each.title for each in inner_steps(Evidence(tmp_path))] == ["AKS.CSE.dkms"]

    (tmp_path / OUTCOME).parent.mkdir(parents=True)
    (tmp_path / OUTCOME).write_text("{")
    assert [each.title for each in inner_steps(Evidence(tmp_path))] == ["AKS.CSE.dkms"]
