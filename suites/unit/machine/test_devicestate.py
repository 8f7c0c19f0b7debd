"""What every driver needs to save and load a machine's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.machine.devicestate import is_end, with_kernel_header
from harness.machine.eventlog import QmpEvent
from harness.machine.spec import DirectKernel, Firmware
from suites.unit.machine.test_argv import a_machine_spec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "status", "expected"),
    [
        ("MIGRATION", "active", False),
        ("MIGRATION", "completed", True),
        ("MIGRATION", "failed", True),
        ("MIGRATION", "cancelled", True),
        ("JOB_STATUS_CHANGE", "completed", False),
    ],
)
def test_end_is_a_migration_that_goes_no_further(
    name: str, status: str, *, expected: bool
) -> None:
    assert is_end(QmpEvent(name=name, at_s=0.0, data={"status": status})) is expected


def test_restored_machine_gets_the_head_of_its_kernel(tmp_path: Path) -> None:
    vmlinuz = tmp_path / "vmlinuz"
    vmlinuz.write_bytes(b"header" + bytes(1 << 20))
    kernel = DirectKernel(version="6.1", vmlinuz=vmlinuz, initrd=tmp_path / "initrd")

    spec = with_kernel_header(a_machine_spec(kernel=kernel, is_restored=True), tmp_path)

    assert isinstance(spec.kernel, DirectKernel)
    assert spec.kernel.vmlinuz.read_bytes() == vmlinuz.read_bytes()[: 64 << 10]


@pytest.mark.parametrize("is_restored", [True, False])
def test_any_other_machine_is_as_it_was(tmp_path: Path, *, is_restored: bool) -> None:
    booted = a_machine_spec()
    by_firmware = a_machine_spec(kernel=Firmware(), is_restored=is_restored)

    assert with_kernel_header(booted, tmp_path) == booted
    assert with_kernel_header(by_firmware, tmp_path) == by_firmware
