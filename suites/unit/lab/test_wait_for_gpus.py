"""Waiting for GPUs starts nothing in a guest that lists them already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.gpu.emulated import EmulatedGpu
from harness.lab.machine import LabMachine
from harness.machine.channels.guest import UNTIL_LISTED, Guest
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.unit.gpu.models import a_model, configure
from suites.unit.lab.builders import a_lab_machine

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.wait import Deadline

BRIDGE = "0000\t80860d57\t0\t               0\n"
GPU = "0100\t10de2330\t10\t        fa000000\tnvidia\n"
UNTIL_ONE = ["sh", "-c", UNTIL_LISTED, "wait", "0x10de:0x2330", "1"]


class ListingAgent:
    """An agent whose guest lists these PCI functions."""

    def __init__(self, listed: str | None) -> None:
        self._listed = listed

    def read_bytes(self, path: str, deadline: Deadline) -> bytes | None:
        del deadline
        assert path == "/proc/bus/pci/devices"
        return None if self._listed is None else self._listed.encode()


def a_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, listed: str | None, runner: ScriptedRunner
) -> LabMachine:
    monkeypatch.setattr(LabMachine, "agent", ListingAgent(listed))
    monkeypatch.setattr(LabMachine, "guest", Guest("node", runner))
    machine = a_lab_machine(folder)
    (gpu,) = machine.gpus.provide([a_model()], report=lambda _: None)
    configure(machine.gpu(gpu.device_id))
    return machine


def test_guest_that_lists_the_gpu_runs_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ScriptedRunner()
    machine = a_machine(tmp_path, monkeypatch, BRIDGE + GPU, runner)

    with runner:
        machine.wait_for_gpus()
        machine.wait_for_gpu(a_model())

    machine.gpus.close()


@pytest.mark.parametrize("listed", [BRIDGE, None])
def test_guest_looks_again_until_it_lists_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str | None
) -> None:
    runner = ScriptedRunner().expect(UNTIL_ONE)
    machine = a_machine(tmp_path, monkeypatch, listed, runner)

    with runner:
        machine.wait_for_gpus()

    machine.gpus.close()


def test_second_gpu_that_is_missing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = (
        ScriptedRunner()
        .expect([*UNTIL_ONE[:-1], "2"], exit_code=124)
        .expect(["lspci", "-nn"], stdout="01:00.0 3D controller [10de:2330]")
    )
    machine = a_machine(tmp_path, monkeypatch, BRIDGE + GPU, runner)
    machine.gpus.provide([a_model()], report=lambda _: None)
    awaited: list[EmulatedGpu] = []
    monkeypatch.setattr(EmulatedGpu, "wait_until_placed", lambda gpu, _: awaited.append(gpu))

    with runner, pytest.raises(HarnessError, match=r"to list 2 PCI functions '10de:2330'"):
        machine.wait_for_gpus()

    assert awaited == [machine.gpu("gpu0"), machine.gpu("gpu1")]

    machine.gpus.close()
