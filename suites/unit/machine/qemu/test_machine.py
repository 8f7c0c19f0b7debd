"""Machines whose QEMU is missing, was never started, or stops on an error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError, RequirementError
from harness.machine.qemu.driver import QemuMachine, parse_processor_s, require_qemu
from harness.provisioning.wait import Deadline
from suites.unit.machine.description.builders import a_machine_spec
from suites.unit.machine.fake_monitor import an_event

if TYPE_CHECKING:
    from pathlib import Path


def test_missing_qemu_is_reported_with_the_package_to_install(tmp_path: Path) -> None:
    machine = QemuMachine(a_machine_spec(qemu="qemu-that-is-not-there"), tmp_path)

    with (
        pytest.raises(
            RequirementError, match=r"'qemu-that-is-not-there'.*apt-get install qemu-system-x86"
        ),
        machine,
    ):
        pass


def test_missing_setpriv_is_reported_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu = tmp_path / "qemu"
    qemu.write_text("#!/bin/sh\n")
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RequirementError, match=r"'setpriv'.*apt-get install util-linux"):
        require_qemu("qemu")


def test_processor_time_is_read_even_if_the_process_name_has_blanks_and_parentheses() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = f"7 (qemu) x (S) S {'0 ' * 10}{3 * ticks} {ticks} 0"

    assert parse_processor_s(stat) == 4.0


def test_machine_that_was_never_started_has_no_pid_and_can_be_closed(tmp_path: Path) -> None:
    machine = QemuMachine(a_machine_spec(), tmp_path)

    assert not machine.is_running
    with pytest.raises(HarnessError, match=r"^Machine 'node' was never started\.$"):
        _ = machine.pid
    with pytest.raises(HarnessError, match=r"^Machine 'node' was never started\.$"):
        machine._wait_for_exit(Deadline.after(1))
    machine.kill()
    machine.close()
    assert machine.logs == {
        name: tmp_path / name for name in ("argv.txt", "stderr.log", "serial.log")
    }


def test_failure_after_a_disk_error_mentions_the_folder_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = an_event("BLOCK_IO_ERROR", reason="No space left on device", __com=1)
    monkeypatch.setattr(QemuMachine, "events", (failed,))

    why = QemuMachine(a_machine_spec(), tmp_path).failure()

    assert why is not None
    assert str(tmp_path) in why
