"""A wait for GPUs runs no command in a guest that already lists the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.gpu.emulated import EmulatedGpu
from harness.machine.channels.guest import UNTIL_LISTED
from suites.unit.gpu.models import a_model

if TYPE_CHECKING:
    from suites.unit.lab.stage import Stage

BRIDGE = b"0000\t80860d57\t0\t               0\n"
GPU = b"0100\t10de2330\t10\t        fa000000\tnvidia\n"


@pytest.fixture
def awaited(monkeypatch: pytest.MonkeyPatch) -> list[EmulatedGpu]:
    """Replace the host's wait for the placement of a GPU, and return the awaited GPUs."""
    gpus: list[EmulatedGpu] = []
    monkeypatch.setattr(EmulatedGpu, "wait_until_placed", lambda gpu, _: gpus.append(gpu))
    return gpus


@pytest.mark.parametrize(
    ("listed", "is_asked"),
    [(BRIDGE + GPU + GPU, False), (BRIDGE + GPU, True), (BRIDGE, True), (None, True)],
    ids=["two GPUs listed", "one of two listed", "none listed", "no list"],
)
def test_wait_command_runs_in_the_guest_only_if_a_gpu_is_not_listed_yet(
    stage: Stage, awaited: list[EmulatedGpu], listed: bytes | None, *, is_asked: bool
) -> None:
    if listed is not None:
        stage.agent.files["/proc/bus/pci/devices"] = listed
    with stage.machine(gpus=[a_model(), a_model()]) as machine:
        machine.wait_for_gpus()

        assert awaited == [machine.gpu("gpu0"), machine.gpu("gpu1")]
        waits = [each[2:] for each in stage.agent.commands() if UNTIL_LISTED in each]
        assert waits == ([(UNTIL_LISTED, "wait", "0x10de:0x2330", "2")] if is_asked else [])
        machine.wait_for_gpu(a_model())
        asked = len([each for each in stage.agent.commands() if UNTIL_LISTED in each])
        assert asked == len(waits) + (listed is None or GPU not in listed)


@pytest.mark.usefixtures("awaited")
def test_error_for_missing_gpus_has_their_number_and_pci_id(stage: Stage) -> None:
    stage.agent.refused.add("0x10de:0x2330")
    with (
        stage.machine(gpus=[a_model(), a_model()]) as machine,
        pytest.raises(HarnessError, match=r"to list 2 PCI functions '10de:2330'"),
    ):
        machine.wait_for_gpus()
