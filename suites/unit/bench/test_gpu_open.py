"""The benchmark of opening a GPU in a clone, with a fake machine that records its calls."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from harness.bench.gpu_open import REOPENS, measure_gpu_open, require_openable
from harness.errors import HarnessError
from harness.gpu.catalogue import load_catalogue
from harness.gpu.emulated import EmulatedGpu
from harness.provisioning.command import CommandResult
from harness.provisioning.wait import Deadline
from harness.settings import GpuEmulation, GpuSource, Settings
from suites.unit.lab.builders import an_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.gpu import GpuModel
    from harness.image import Image
    from harness.lab import Lab
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState

A100 = load_catalogue().get("a100-sxm4-40gb")


@dataclass
class NotingMachine:
    """Records its calls; `nvidia-smi` in its guest prints `listed`."""

    listed: str
    done: list[str] = field(default_factory=list)

    @property
    def guest(self) -> NotingMachine:
        return self

    def deadline(self, kvm_s: float) -> Deadline:
        return Deadline.after(kvm_s)

    def hot_plug(self, model: GpuModel) -> str:
        self.done.append(f"plug {model.name}")
        return "gpu0"

    def hot_unplug(self, device_id: str) -> None:
        self.done.append(f"unplug {device_id}")

    def gpu(self) -> EmulatedGpu:
        gpu = EmulatedGpu(A100, bars=A100.bars.vfio_user)
        for _ in range(3):
            gpu.bar_read(0, 0, 4)
        return gpu

    def wait_for_gpu(self, model: GpuModel) -> None:
        del model

    def run(self, *argv: str, timeout_s: float) -> CommandResult:
        del timeout_s
        self.done.append(" ".join(argv))
        return CommandResult(argv=argv, exit_code=0, stdout=self.listed, stderr="")

    output_of = run


@dataclass
class LabOfOneMachine:
    """A fake lab with one machine, which is the machine of each saved state and of each clone."""

    machine: NotingMachine

    def node_image(self) -> Image:
        return an_image()

    def ensure_checkpoint(self, state: SavedState) -> None:
        assert state.make is not None
        state.make(cast("LabMachine", self.machine))

    @contextlib.contextmanager
    def clone(self, state: SavedState, name: str) -> Iterator[NotingMachine]:
        del state, name
        yield self.machine


def test_driver_is_loaded_once_before_a_gpu_is_plugged_into_each_clone() -> None:
    machine = NotingMachine(listed=f"GPU 0: {A100.title} (UUID: GPU-0)\n")

    opens = measure_gpu_open(cast("Lab", LabOfOneMachine(machine)), A100, runs=2)

    assert (opens.gpu_open_s.runs, opens.reopen_s.runs) == (2, REOPENS)
    # The accesses of only the first open are counted.
    assert opens.accesses == 3
    assert opens.device_mib < 64
    assert machine.done == [
        "plug a100-sxm4-40gb",
        "nvidia-modprobe -u -c0",
        "unplug gpu0",
        *["plug a100-sxm4-40gb", "nvidia-smi -L"] * 2,
        *["nvidia-smi -L"] * REOPENS,
    ]


def test_gpu_open_bench_fails_if_the_driver_lists_no_gpu() -> None:
    machine = NotingMachine(listed="No devices were found\n")

    with pytest.raises(HarnessError, match="--gpu-emulation=gsp") as refused:
        measure_gpu_open(cast("Lab", LabOfOneMachine(machine)), A100, runs=1)

    assert "No devices were found" in str(refused.value)


def test_require_openable_accepts_gsp_emulated_and_host_gpus() -> None:
    rows: list[tuple[Settings, GpuModel]] = [
        (Settings(gpu_emulation=GpuEmulation.GSP), A100),
        (Settings(), A100.emulated_as(GpuEmulation.GSP)),
        (Settings(gpu_source=GpuSource.HOST), A100),
    ]
    for settings, model in rows:
        require_openable(settings, model)
