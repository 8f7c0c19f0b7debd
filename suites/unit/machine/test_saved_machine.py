"""How the machines of all VM drivers are saved and restored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine import monitored_machine
from harness.machine.device_state import DeviceStateError
from suites.unit.machine.fake_machine import a_machine
from suites.unit.machine.fake_monitor import FakeMonitor, an_event

if TYPE_CHECKING:
    from pathlib import Path

DONE = an_event("MIGRATION", status="completed")


def test_failed_save_waits_for_qemu_to_exit_and_reports_the_failure(tmp_path: Path) -> None:
    state = tmp_path / "state"
    monitor = FakeMonitor(events={"migrate": an_event("MIGRATION", status="failed")})
    machine = a_machine(tmp_path, monitor)

    with pytest.raises(
        HarnessError,
        match=rf"'migrate' with the state '{state}'.*'failed'.*load of migration failed",
    ):
        machine.save(state)

    assert machine.steps == ["pause", "wait for exit"]


def test_error_of_a_failed_save_is_raised_although_qemu_does_not_end(tmp_path: Path) -> None:
    monitor = FakeMonitor(events={"migrate": an_event("MIGRATION", status="failed")})
    machine = a_machine(tmp_path, monitor)
    machine.exit_error = HarnessError("Waited 2.0 s for QEMU to end.")

    with pytest.raises(
        HarnessError, match=r"The migration ended as 'failed'\. QEMU's stderr ends with:"
    ):
        machine.save(tmp_path / "state")


def test_guest_runs_after_its_state_was_loaded(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    monitor = FakeMonitor(events={"migrate-incoming": DONE})
    machine = a_machine(tmp_path, monitor)

    machine.restore(tmp_path / "state")

    assert machine.steps == ["resume"]
    assert monitor.arguments["migrate-set-parameters"] == {"announce-rounds": 0}


def test_error_for_a_refused_state_has_the_output_of_qemu_and_the_guest_does_not_run(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    state.touch()
    monitor = FakeMonitor(events={"migrate-incoming": an_event("MIGRATION", status="failed")})
    machine = a_machine(tmp_path, monitor)

    with pytest.raises(
        HarnessError,
        match=rf"'migrate-incoming' with the state '{state}'.*'failed'.*load of migration failed",
    ):
        machine.restore(state)

    assert machine.steps == ["wait for exit"]
    assert machine.deadlines[0].remaining_s() <= 2, "QEMU ends at once, or goes on."


def test_guest_continues_after_its_whole_state_was_saved_and_its_disk_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = a_machine(tmp_path)
    saved: list[object] = []

    def save(*how: object) -> None:
        machine.steps.append("save")
        saved.append(how)

    monkeypatch.setattr(monitored_machine, "save_whole_state", save)

    with machine.saved_whole(tmp_path / "memory.zst"):
        machine.steps.append("copy the disk")

    assert machine.steps == ["pause", "save", "copy the disk", "resume"]
    assert saved == [(machine.monitor, "node", tmp_path / "memory.zst")]


@pytest.mark.parametrize("where", ["state", "disk"])
def test_guest_continues_if_it_could_not_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    machine = a_machine(tmp_path)

    def save(*_: object) -> None:
        if where == "state":
            raise DeviceStateError("QEMU refused.")

    monkeypatch.setattr(monitored_machine, "save_whole_state", save)

    def save_all() -> None:
        with machine.saved_whole(tmp_path / "memory.zst"):
            raise HarnessError("The disk could not be copied.")

    with pytest.raises(HarnessError, match="refused" if where == "state" else "be copied"):
        save_all()

    assert machine.steps[-1] == "resume"


def test_machine_resumes_after_its_whole_state_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = FakeMonitor()
    machine = a_machine(tmp_path, monitor)
    loaded: list[object] = []
    monkeypatch.setattr(monitored_machine, "restore_whole_state", lambda *how: loaded.append(how))

    machine.restore_whole(tmp_path / "memory.zst")

    assert loaded == [(monitor, "node", tmp_path / "memory.zst")]
    assert machine.steps == ["resume"]


def test_guest_does_not_run_if_qemu_refuses_its_whole_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DeviceStateError("It is another machine's.")

    monkeypatch.setattr(monitored_machine, "restore_whole_state", refuse)
    machine = a_machine(tmp_path)

    with pytest.raises(
        HarnessError,
        match=r"^It is another machine's\. QEMU's stderr ends with: load of migration",
    ):
        machine.restore_whole(tmp_path / "memory.zst")

    assert machine.steps == ["wait for exit"]
