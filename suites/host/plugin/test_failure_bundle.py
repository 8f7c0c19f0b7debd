"""The files that are added to the evidence of a machine whose test failed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError
from harness.evidence.state import StateKind
from harness.plugin.failure_bundle import completed
from suites.unit.evidence.states import a_state
from suites.unit.timeline.folders import a_node_that_built

if TYPE_CHECKING:
    from pathlib import Path

    from harness.evidence.state import NodeState
    from harness.lab.machine import LabMachine


def a_machine(before: NodeState | None = None, after: NodeState | None = None) -> LabMachine:
    return cast("LabMachine", SimpleNamespace(name="node", last_state=before, state=lambda: after))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the evidence folder of a machine whose guest responds."""
    monkeypatch.setattr("harness.plugin.failure_bundle.collect_history", lambda *_: None)
    monkeypatch.setattr("harness.plugin.failure_bundle.versions_of", lambda *_: {"schema": 1})
    return a_node_that_built(tmp_path / "node").write()


def test_versions_and_a_timeline_are_added_to_the_evidence_of_a_failed_test(folder: Path) -> None:
    completed(a_machine(), folder, HarnessError("It hangs."))

    assert json.loads((folder / "versions.json").read_text()) == {"schema": 1}
    assert "cloud-final.service" in (folder / "timeline.html").read_text()
    assert not (folder / "states").exists()
    assert not (folder / "left-out.txt").exists()


def test_only_a_timeline_is_added_to_the_evidence_of_a_passed_test(folder: Path) -> None:
    before = set(folder.rglob("*"))

    assert completed(a_machine(), folder, None) == folder

    added = {path.name for path in {*folder.rglob("*")} - before}
    assert added == {"timeline.html"}


def test_evidence_of_a_failed_test_has_the_difference_to_the_recorded_node_state(
    folder: Path,
) -> None:
    before = a_state(items={StateKind.PACKAGES: {"adduser": {"version": "3.134"}}})
    after = a_state(items={StateKind.PACKAGES: {"adduser": {"version": "3.137"}}})

    completed(a_machine(before, after), folder, AssertionError())

    text = (folder / "states/difference-at-failure.txt").read_text()
    assert "~ adduser: version 3.134 -> 3.137" in text


def test_evidence_part_that_cannot_be_added_is_listed_in_left_out_txt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.plugin.failure_bundle.versions_of", fail)

    completed(a_machine(), folder, AssertionError())

    assert "add_versions" in (folder / "left-out.txt").read_text()
    assert (folder / "timeline.html").is_file()
