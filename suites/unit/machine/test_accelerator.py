"""KVM is believed only after it has run something."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.machine.accelerator import (
    AcceleratorChoice,
    choose_accelerator,
    explain_proof,
    proof_rom,
    run_proof,
)
from harness.machine.description.spec import Accelerator
from harness.provisioning.command import CommandResult
from harness.settings import AcceleratorOption

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROVED = CommandResult(argv=(), exit_code=0x55, stdout="", stderr="")
HANGS = CommandResult(argv=(), exit_code=124, stdout="", stderr="", timed_out=True, duration_s=2.0)
STOPS = CommandResult(
    argv=(),
    exit_code=124,
    stdout="",
    stderr="KVM internal error. Suberror: 1\nemulation failure\n",
    timed_out=True,
    duration_s=2.0,
)
ABORTS = CommandResult(
    argv=(),
    exit_code=-6,
    stdout="",
    stderr="error: failed to set MSR 0x10a to 0x0\nqemu: kvm_buf_set_msrs: Assertion failed\n",
)
REFUSES = CommandResult(
    argv=(), exit_code=1, stdout="", stderr="Could not access KVM kernel module: EBUSY\n"
)


@dataclass
class ProofRunner:
    """A Runner that returns the same result for every proof and records the calls."""

    answer: CommandResult
    calls: list[Sequence[str]] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        del stdin, env
        self.calls.append(argv)
        self.limits_s.append(timeout_s)
        return self.answer


@pytest.fixture
def device(tmp_path: Path) -> Path:
    node = tmp_path / "kvm"
    node.touch()
    return node


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def choose(
    qemu: ProofRunner,
    cache: Path,
    device: Path,
    *,
    option: AcceleratorOption = AcceleratorOption.AUTO,
    program: str = "qemu-x",
) -> AcceleratorChoice:
    return choose_accelerator(option, qemu=program, runner=qemu, cache=cache, device=device)


def test_kvm_that_runs_something_is_chosen(cache: Path, device: Path) -> None:
    choice = choose(ProofRunner(PROVED), cache, device)

    assert choice.accelerator is Accelerator.KVM
    assert "it ran a program in long mode correctly" in choice.reason


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HANGS, "a guest did not finish within 2 s"),
        (
            STOPS,
            "a guest did not finish within 2 s ('KVM internal error. Suberror: 1')",
        ),
        (ABORTS, "QEMU ended with -6 ('error: failed to set MSR 0x10a to 0x0')"),
        (REFUSES, "QEMU ended with 1 ('Could not access KVM kernel module: EBUSY')"),
    ],
)
def test_broken_kvm_is_replaced_by_tcg_with_the_reason(
    cache: Path, device: Path, answer: CommandResult, words: str
) -> None:
    choice = choose(ProofRunner(answer), cache, device)

    assert choice.accelerator is Accelerator.TCG
    assert words in choice.reason
    assert str(device) in choice.reason


@pytest.mark.parametrize("answer", [HANGS, ABORTS, REFUSES])
def test_requested_kvm_that_is_broken_is_refused(
    cache: Path, device: Path, answer: CommandResult
) -> None:
    with pytest.raises(RequirementError, match=r"KVM was requested, but .*--accelerator=tcg"):
        choose(ProofRunner(answer), cache, device, option=AcceleratorOption.KVM)


def test_requested_kvm_gets_longer_than_one_that_is_only_tried(cache: Path, device: Path) -> None:
    """And it is tried anew: on an emulated host QEMU may only have been too slow."""
    qemu = ProofRunner(HANGS)
    choose(qemu, cache, device)
    qemu.answer = PROVED

    choice = choose(qemu, cache, device, option=AcceleratorOption.KVM)

    assert choice.accelerator is Accelerator.KVM
    assert qemu.limits_s == [2.0, 20.0]


def test_host_without_the_device_runs_nothing(cache: Path, tmp_path: Path) -> None:
    qemu = ProofRunner(PROVED)

    choice = choose(qemu, cache, tmp_path / "absent")

    assert (choice.accelerator, qemu.calls) == (Accelerator.TCG, [])
    assert "there is no" in choice.reason


def test_requested_kvm_that_is_absent_is_refused(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(RequirementError, match="KVM was requested, but there is no"):
        choose(ProofRunner(PROVED), cache, tmp_path / "absent", option=AcceleratorOption.KVM)


def test_inaccessible_device_is_distinguished_from_a_broken_one(
    cache: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)

    assert "usermod -aG kvm" in choose(ProofRunner(PROVED), cache, device).reason


def test_tcg_is_taken_at_its_word(cache: Path, device: Path) -> None:
    qemu = ProofRunner(PROVED)

    assert choose(qemu, cache, device, option=AcceleratorOption.TCG).accelerator is Accelerator.TCG
    assert qemu.calls == []


@pytest.mark.parametrize("answer", [PROVED, HANGS])
def test_verdict_is_remembered(cache: Path, device: Path, answer: CommandResult) -> None:
    qemu = ProofRunner(answer)

    first, second = choose(qemu, cache, device), choose(qemu, cache, device)

    assert first == second
    assert len(qemu.calls) == 1


def test_verdicts_of_two_qemus_are_remembered_side_by_side(cache: Path, device: Path) -> None:
    qemu = ProofRunner(PROVED)

    for program in ("qemu-x", "qemu-y", "qemu-x", "qemu-y"):
        choose(qemu, cache, device, program=program)

    assert len(qemu.calls) == 2


def test_verdict_of_an_earlier_boot_is_neither_believed_nor_kept(
    cache: Path, device: Path
) -> None:
    qemu = ProofRunner(HANGS)
    choose(qemu, cache, device)
    (kept,) = json.loads((cache / "accelerator.json").read_text())
    (cache / "accelerator.json").write_text(json.dumps({f"earlier-{kept}": "did nothing"}))
    qemu.answer = PROVED

    choice = choose(qemu, cache, device)

    assert choice.accelerator is Accelerator.KVM
    assert list(json.loads((cache / "accelerator.json").read_text())) == [kept]


def test_replaced_qemu_is_proved_again(cache: Path, device: Path, tmp_path: Path) -> None:
    program = tmp_path / "qemu"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    qemu = ProofRunner(HANGS)
    choose(qemu, cache, device, program=str(program))

    program.write_text("#!/bin/sh\n# upgraded\n")
    choose(qemu, cache, device, program=str(program))

    assert len(qemu.calls) == 2


def test_remembered_failure_says_how_to_test_again(cache: Path, device: Path) -> None:
    choose(ProofRunner(HANGS), cache, device)

    assert (
        f"remove '{cache / 'accelerator.json'}'"
        in choose(ProofRunner(PROVED), cache, device).reason
    )


@pytest.mark.parametrize("exit_code", [126, 127])
def test_proof_that_never_started_is_not_remembered(
    cache: Path, device: Path, exit_code: int
) -> None:
    missing = CommandResult(argv=(), exit_code=exit_code, stdout="", stderr="No such file")

    assert choose(ProofRunner(missing), cache, device).accelerator is Accelerator.TCG

    assert choose(ProofRunner(PROVED), cache, device).accelerator is Accelerator.KVM


@pytest.mark.parametrize("content", ["", "{half", "[]", '"text"', "\x00"])
def test_damaged_memory_is_as_good_as_none(cache: Path, device: Path, content: str) -> None:
    cache.mkdir()
    (cache / "accelerator.json").write_text(content)

    assert choose(ProofRunner(PROVED), cache, device).accelerator is Accelerator.KVM


def test_memory_that_cannot_be_written_does_no_harm(cache: Path, device: Path) -> None:
    (cache / "accelerator.json").mkdir(parents=True)

    assert choose(ProofRunner(PROVED), cache, device).accelerator is Accelerator.KVM
    assert [path.name for path in cache.iterdir()] == ["accelerator.json"]


def test_proof_dies_with_the_harness() -> None:
    """A guest that hangs would outlive a harness killed within these two seconds."""
    qemu = ProofRunner(PROVED)

    run_proof("qemu-x", Accelerator.KVM, qemu)

    assert list(qemu.calls[0][:5]) == ["setpriv", "--pdeathsig", "KILL", "--", "qemu-x"]


def test_proof_runs_on_the_processor_that_machines_get() -> None:
    qemu = ProofRunner(PROVED)

    run_proof("qemu-x", Accelerator.KVM, qemu)

    assert " -accel kvm -cpu host " in " ".join(qemu.calls[0])


def test_rom_jumps_from_the_reset_vector_to_its_start() -> None:
    rom = proof_rom()

    displacement = int.from_bytes(rom[0xFFF1:0xFFF3], "little")
    assert (len(rom), rom[0xFFF0]) == (0x10000, 0xE9)
    assert (0xFFF3 + displacement) & 0xFFFF == 0
    assert rom[0] == 0xFA  # cli


def test_exit_code_zero_proves_nothing() -> None:
    """QEMU ends with 0 when a guest shuts down, and the proof never does."""
    quiet = CommandResult(argv=(), exit_code=0, stdout="", stderr="")

    assert explain_proof(quiet) == "QEMU ended with 0 ('no message')"
