"""The QMP commands that a machine sends to its QEMU, and the errors for refused commands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError, RequirementError
from harness.gpu import HostGpuAttachment
from harness.machine.qemu import driver
from harness.machine.qemu.driver import QemuMachine
from harness.provisioning.wait import Deadline
from suites.unit.machine.description.builders import a_machine_spec, an_attachment
from suites.unit.machine.fake_monitor import FakeMonitor, an_event

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu import Attachment
    from harness.machine.channels.qmp import QmpSession
    from harness.provisioning.command import ChildProcess


def _with_monitor(machine: QemuMachine, monitor: FakeMonitor) -> QemuMachine:
    machine._qmp = cast("QmpSession", monitor)
    return machine


def test_seed_is_plugged_into_the_seed_port_as_a_read_only_disk(tmp_path: Path) -> None:
    monitor = FakeMonitor()

    _with_monitor(QemuMachine(a_machine_spec(), tmp_path), monitor).plug_seed(tmp_path / "seed")

    assert monitor.calls == [
        (
            "blockdev-add",
            {
                "node-name": "seed",
                "driver": "raw",
                "read-only": True,
                "file": {"driver": "file", "filename": str(tmp_path / "seed")},
            },
        ),
        (
            "device_add",
            {
                "driver": "virtio-blk-pci",
                "id": "seed-disk",
                "drive": "seed",
                "serial": "seed",
                "bus": "seed",
            },
        ),
    ]


def test_seed_image_is_closed_after_the_guest_has_released_the_seed_disk(tmp_path: Path) -> None:
    removed = an_event("DEVICE_DELETED", device="seed-disk")
    monitor = FakeMonitor(events={"device_del": removed})
    machine = QemuMachine(a_machine_spec(seed=tmp_path / "seed"), tmp_path)
    deadline = Deadline.after(60)

    _with_monitor(machine, monitor).unplug_seed(deadline)

    assert monitor.calls == [
        ("device_del", {"id": "seed-disk"}),
        ("blockdev-del", {"node-name": "seed"}),
    ]
    assert monitor.deadlines == [deadline]


def test_save_stops_the_guest_before_the_migration_and_quits_qemu_afterwards(
    tmp_path: Path,
) -> None:
    monitor = FakeMonitor(events={"migrate": an_event("MIGRATION", status="completed")})
    machine = _with_monitor(QemuMachine(a_machine_spec(), tmp_path), monitor)
    process = SimpleNamespace(poll=lambda: 0 if "quit" in monitor.commands else None)
    machine._process = cast("ChildProcess", process)

    machine.save(tmp_path / "state")

    assert not machine.is_running
    assert monitor.commands == [
        "stop",
        "migrate-set-capabilities",
        "query-version",
        "getfd",
        "migrate",
        "quit",
    ]


def test_saved_whole_stops_the_guest_before_the_save_and_continues_the_guest_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = FakeMonitor()
    machine = _with_monitor(QemuMachine(a_machine_spec(), tmp_path), monitor)
    monkeypatch.setattr(
        "harness.machine.monitored_machine.save_whole_state",
        lambda *_: monitor.commands.append("save"),
    )

    with machine.saved_whole(tmp_path / "memory.gz"):
        pass

    assert monitor.commands == ["stop", "save", "cont"]


def test_error_of_a_failed_restore_ends_with_the_last_stderr_of_qemu(tmp_path: Path) -> None:
    failed = an_event("MIGRATION", status="failed")
    machine = QemuMachine(a_machine_spec(), tmp_path)
    (tmp_path / "state").touch()
    for printed, quoted in (
        (b"", "nothing"),
        (b"bad byte \xff", "bad byte \N{REPLACEMENT CHARACTER}"),
        (b"first" + b"x" * 2000, "x" * 2000),
    ):
        _with_monitor(machine, FakeMonitor(events={"migrate-incoming": failed}))
        machine.stderr_log.write_bytes(printed)

        with pytest.raises(HarnessError) as caught:
            machine.restore(tmp_path / "state")

        assert str(caught.value).endswith(
            f"The migration ended as 'failed'. QEMU's stderr ends with: {quoted}"
        )


@pytest.mark.parametrize("is_at_start", [True, False])
def test_host_gpu_requires_that_the_memory_of_the_guest_can_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_at_start: bool
) -> None:
    def refuse(memory_mib: int) -> None:
        raise RequirementError(f"{memory_mib} MiB can't be locked.")

    monkeypatch.setattr(driver, "require_qemu", lambda _: None)
    monkeypatch.setattr(driver, "require_locked_memory", refuse)
    gpu = HostGpuAttachment(id="gpu0", addresses=("0000:65:00.0",))
    at_start: list[Attachment] = [an_attachment("gpu1"), gpu] if is_at_start else []
    machine = QemuMachine(a_machine_spec(memory_mib=768), tmp_path, at_start)

    with pytest.raises(RequirementError, match=r"^768 MiB can't be locked\.$"):
        machine.__enter__() if is_at_start else machine.plug(gpu)


def test_emulated_gpu_needs_no_locked_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_memory_mib: int) -> None:
        raise RequirementError("Nothing can be locked.")

    monkeypatch.setattr(driver, "require_locked_memory", refuse)
    monitor = FakeMonitor()

    _with_monitor(QemuMachine(a_machine_spec(root_ports=1), tmp_path), monitor).plug(
        an_attachment("gpu0")
    )

    assert monitor.commands == ["getfd", "device_add"]
