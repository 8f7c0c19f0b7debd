"""The QEMU driver: the behaviour that can be tested without QEMU."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.machine.description.spec import Accelerator
from harness.machine.qemu import driver as qemu_driver
from harness.machine.qemu.driver import QemuDriver, state_argv
from suites.unit.machine.description.builders import a_machine_spec

if TYPE_CHECKING:
    from harness.machine import VmDriver


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VmDriver:
    monkeypatch.setattr(qemu_driver, "require_qemu", lambda _: None)
    monkeypatch.setattr(qemu_driver, "qemu_identity", lambda qemu, *_: f"the digest of {qemu}")
    return QemuDriver("qemu", cache=tmp_path)


def test_qemu_driver_refuses_a_missing_qemu(tmp_path: Path) -> None:
    with pytest.raises(RequirementError, match="no QEMU 'qemu-that-is-not-there'"):
        QemuDriver("qemu-that-is-not-there", cache=tmp_path)


def test_state_parts_have_the_digest_of_qemu_and_the_arguments_of_the_machine(
    driver: VmDriver,
) -> None:
    parts = driver.state_parts(a_machine_spec(memory_mib=512))

    assert parts == {
        "argv": state_argv(a_machine_spec(memory_mib=512)),
        "qemu": "the digest of qemu",
    }


def test_state_arguments_do_not_depend_on_the_machine_name_and_disk_paths() -> None:
    spec = a_machine_spec()

    moved = replace(spec, name="other", disk=Path("/moved/disk"), seed=Path("/moved/seed"))

    assert state_argv(moved) == state_argv(spec)


def test_digest_of_qemu_is_computed_once_for_all_runs(program: Path, tmp_path: Path) -> None:
    """Reading QEMU takes as long as restoring a machine."""
    cache = tmp_path / "cache"
    spec = a_machine_spec()
    digest = QemuDriver(str(program), cache=cache).state_parts(spec)["qemu"]
    (kept,) = cache.iterdir()
    kept.write_text(kept.read_text().replace(str(digest), "what was kept"))

    parts = QemuDriver(str(program), cache=cache).state_parts(spec)

    assert digest == hashlib.sha256(program.read_bytes()).hexdigest()
    assert parts["qemu"] == "what was kept"


def test_state_parts_have_another_qemu_identity_under_kvm_than_under_tcg(
    program: Path, tmp_path: Path
) -> None:
    driver = QemuDriver(str(program), cache=tmp_path / "cache")

    under_tcg, under_kvm = (
        driver.state_parts(a_machine_spec(accelerator=accelerator))["qemu"]
        for accelerator in (Accelerator.TCG, Accelerator.KVM)
    )

    assert under_tcg != under_kvm
