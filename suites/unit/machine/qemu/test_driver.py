"""The driver that starts QEMU itself, as far as no QEMU is needed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import RequirementError
from harness.machine.description.spec import Accelerator
from harness.machine.program_answers import RememberingRunner
from harness.machine.qemu import driver as qemu_driver
from harness.machine.qemu.driver import QemuDriver, QemuMachine, state_argv
from harness.provisioning.command import LocalRunner
from harness.settings import AcceleratorOption
from suites.unit.machine.description.builders import a_machine_spec, an_attachment

if TYPE_CHECKING:
    from harness.machine import VmDriver


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VmDriver:
    monkeypatch.setattr(qemu_driver, "require_qemu", lambda _: None)
    monkeypatch.setattr(qemu_driver, "qemu_identity", lambda qemu, *_: f"the digest of {qemu}")
    return QemuDriver("qemu", cache=tmp_path)


def test_host_without_qemu_has_no_such_driver(tmp_path: Path) -> None:
    with pytest.raises(RequirementError, match="no QEMU 'qemu-that-is-not-there'"):
        QemuDriver("qemu-that-is-not-there", cache=tmp_path)


def test_saved_state_depends_on_the_program_and_the_devices(driver: VmDriver) -> None:
    parts = driver.state_parts(a_machine_spec(memory_mib=512))

    assert parts == {
        "argv": state_argv(a_machine_spec(memory_mib=512)),
        "qemu": "the digest of qemu",
    }


def test_saved_state_does_not_depend_on_names_and_places() -> None:
    spec = a_machine_spec()

    moved = replace(spec, name="other", disk=Path("/moved/disk"), seed=Path("/moved/seed"))

    assert state_argv(moved) == state_argv(spec)


def test_accelerator_and_transport_are_those_of_its_own_qemu(
    driver: VmDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def choose(option: object, *, qemu: str, runner: object, cache: Path) -> str:
        assert isinstance(runner, LocalRunner)
        asked.append((option, qemu, cache))
        return "the choice"

    def find(qemu: str, accelerator: str, runner: object) -> str:
        assert isinstance(runner, RememberingRunner)
        asked.append((qemu, accelerator))
        return "the transport"

    monkeypatch.setattr(qemu_driver, "choose_accelerator", choose)
    monkeypatch.setattr(qemu_driver, "find_transport", find)

    assert cast("str", driver.choose_accelerator(AcceleratorOption.KVM)) == "the choice"
    assert cast("str", driver.transport(Accelerator.KVM)) == "the transport"

    assert asked == [(AcceleratorOption.KVM, "qemu", tmp_path), ("qemu", "kvm")]


def test_program_that_another_state_was_saved_by_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu_driver, "require_qemu", lambda _: None)
    monkeypatch.setattr(
        qemu_driver,
        "qemu_identity",
        lambda qemu, accelerator, _: f"{qemu} under {accelerator.name}",
    )
    driver = QemuDriver("my-qemu", cache=tmp_path)

    assert driver.state_parts(a_machine_spec(accelerator=Accelerator.KVM))["qemu"] == (
        "my-qemu under KVM"
    )


def test_machine_has_what_was_asked_for(driver: VmDriver, tmp_path: Path) -> None:
    spec, gpu = a_machine_spec(), an_attachment("gpu0")

    machine = driver.machine(spec, tmp_path, [gpu], agent_program=b"the agent")

    assert isinstance(machine, QemuMachine)
    assert (machine.spec, machine.folder) == (spec, tmp_path)
    assert (machine._attachments, machine._agent_program) == ((gpu,), b"the agent")
    assert not machine.is_running


def test_qemu_is_digested_once_for_all_runs(program: Path, tmp_path: Path) -> None:
    """To read it takes as long as to restore a machine."""
    cache = tmp_path / "cache"
    spec = a_machine_spec()
    digest = QemuDriver(str(program), cache=cache).state_parts(spec)["qemu"]
    (kept,) = cache.iterdir()
    kept.write_text(kept.read_text().replace(str(digest), "what was kept"))

    parts = QemuDriver(str(program), cache=cache).state_parts(spec)

    assert digest == hashlib.sha256(program.read_bytes()).hexdigest()
    assert parts["qemu"] == "what was kept"


def test_state_under_kvm_depends_on_the_processor_too(program: Path, tmp_path: Path) -> None:
    driver = QemuDriver(str(program), cache=tmp_path / "cache")

    under_tcg, under_kvm = (
        driver.state_parts(a_machine_spec(accelerator=accelerator))["qemu"]
        for accelerator in (Accelerator.TCG, Accelerator.KVM)
    )

    assert under_tcg != under_kvm
