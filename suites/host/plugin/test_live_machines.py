"""A kept machine belongs to a process that continues after the test run."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError
from harness.plugin import live_machines
from harness.settings import MachineDriver, Settings

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab.machine_bundle import MachineBundle


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path at which the test writes a script to run in place of `harness resume`."""
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def hold(folder: Path, settings: Settings) -> str:
    evidence = folder / "evidence of node"
    evidence.mkdir()
    (evidence / "holder.log").write_text("held: of-an-earlier-run\n")
    bundle = SimpleNamespace(folder=evidence / "checkpoint")
    return live_machines.hold(cast("MachineBundle", bundle), evidence, settings)


def write(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_hold_resumes_the_machine_in_a_separate_process_with_the_options_of_the_run(
    holder: Path, tmp_path: Path
) -> None:
    write(holder, f'echo "$@" >{tmp_path}/words; echo "12:00 it resumes"; echo "held: node-9"')
    settings = Settings(
        qemu="my-qemu",
        machine_driver=MachineDriver.LIBVIRT,
        machine_uri="qemu:///system",
        machine_keep_hours=2.5,
        gpu_models=(tmp_path / "one", tmp_path / "two"),
    )

    assert hold(tmp_path, settings) == "node-9"
    assert (tmp_path / "words").read_text() == (
        f"-m harness.cli resume {tmp_path}/evidence of node/checkpoint --hold 2.5 --qemu my-qemu "
        f"--machine-uri qemu:///system --gpu-models {tmp_path}/one --gpu-models {tmp_path}/two\n"
    )


def test_hold_raises_a_harness_error_if_the_resume_process_exits(
    holder: Path, tmp_path: Path
) -> None:
    write(holder, "echo 'harness: There is no QEMU.'; exit 2")

    with pytest.raises(
        HarnessError,
        match=r"ended with exit code 2, and printed: harness: There is no QEMU\.$",
    ):
        hold(tmp_path, Settings())
