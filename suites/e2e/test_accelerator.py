"""The proof program for KVM passes under a working accelerator and fails under a broken one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.machine import accelerator
from harness.machine.accelerator import is_proven, run_proof
from harness.machine.description.spec import Accelerator
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    import pytest

    from harness.settings import Settings

_INT3_AND_AFTER = bytes.fromhex("cc3d78563412")


def test_emulated_processor_passes_the_proof_program(settings: Settings) -> None:
    result = run_proof(settings.qemu, Accelerator.TCG, LocalRunner())

    assert is_proven(result), result


def test_processor_without_breakpoint_exceptions_fails_the_proof_program(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the breakpoint exception, the program prints the number without inverting it."""
    proof = accelerator._PROOF
    assert proof.count(_INT3_AND_AFTER) == 1
    without = proof.replace(_INT3_AND_AFTER, b"\x90" + _INT3_AND_AFTER[1:])
    monkeypatch.setattr(accelerator, "_PROOF", without)

    result = run_proof(settings.qemu, Accelerator.TCG, LocalRunner())

    assert not is_proven(result)
    assert result.timed_out
