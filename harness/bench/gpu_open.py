"""How long it takes in a clone from plugging an emulated GPU until NVIDIA's `nvidia-smi -L` shows it.

The clone's state has the driver loaded. The driver loads only where there is a GPU, so one is plugged while
the state is made, and unplugged before it is saved.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from harness.bench.spread import Spread
from harness.errors import HarnessError
from harness.lab.saved_states import booted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.gpu import GpuModel
    from harness.lab import Lab
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState

GPU_OPEN_S = "gpu_open_s"
#: What is measured, in clones whose state has the driver loaded.
MEASURES: Mapping[str, str] = {
    GPU_OPEN_S: "from plugging an emulated GPU until NVIDIA's `nvidia-smi -L` shows it",
}

#: Seconds that KVM is given; TCG gets them times its patience.
_LOAD_KVM_S = 60.0
_OPEN_KVM_S = 30.0


def measure_gpu_open(lab: Lab, model: GpuModel, *, runs: int) -> Spread:
    """Measure `runs` clones of the lab's image, which has NVIDIA's driver."""
    state = with_driver_loaded(booted(lab.node_image()), model)
    lab.ensure_checkpoint(state)
    return Spread.of([_open(lab, state, model) for _ in range(runs)])


def with_driver_loaded(state: SavedState, model: GpuModel) -> SavedState:
    """Return the state in which NVIDIA's driver is loaded, but there is no GPU."""

    def make(machine: LabMachine) -> None:
        device_id = machine.hot_plug(model)
        machine.wait_for_gpu(model)
        limit_s = machine.deadline(_LOAD_KVM_S).remaining_s()
        machine.guest.output_of("nvidia-modprobe", "-u", "-c0", timeout_s=limit_s)
        machine.hot_unplug(device_id)

    return state.derive(f"{state.origin.name}-driver-loaded", make)


def _open(lab: Lab, state: SavedState, model: GpuModel) -> float:
    with lab.clone(state, "bench-open") as machine:
        limit_s = machine.deadline(_OPEN_KVM_S).remaining_s()
        started = time.monotonic()
        machine.hot_plug(model)
        machine.wait_for_gpu(model)
        shown = machine.guest.run("nvidia-smi", "-L", timeout_s=limit_s)
        seconds = time.monotonic() - started
    if model.title not in shown.stdout:
        raise HarnessError(
            f"`nvidia-smi -L` was expected to show '{model.title}', but the driver did not open the GPU. "
            "Use an image with NVIDIA's whole user space and --gpu-emulation=gsp.\n"
            f"{shown.render()}"
        )
    return seconds
