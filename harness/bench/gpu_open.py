"""Measures the time in a clone from plugging an emulated GPU until NVIDIA's `nvidia-smi -L` shows the GPU.

NVIDIA's driver is already loaded in the saved state from which the clone continues. The driver
loads only if there is a GPU, so a GPU is plugged while the state is made, and unplugged before the
state is saved.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bench.spread import Spread
from harness.errors import BadInputError, HarnessError
from harness.lab.saved_states import booted
from harness.settings import GpuEmulation, GpuSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.gpu import GpuModel
    from harness.gpu.emulated import EmulatedGpu
    from harness.lab import Lab
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState
    from harness.settings import Settings

GPU_OPEN_S = "gpu_open_s"
#: The measures; in each clone, the driver is already loaded.
MEASURES: Mapping[str, str] = {
    GPU_OPEN_S: "from plugging an emulated GPU until NVIDIA's `nvidia-smi -L` shows the GPU",
    "accesses": "the guest's accesses to the GPU during gpu_open_s; each access is a message",
    "device_mib": "memory by which the process that serves the GPU grows during gpu_open_s",
    "reopen_s": "the time of an `nvidia-smi -L` that opens and closes the GPU again",
    "reopen_growth_mib": "memory by which the process grows while the guest opens the GPU again and again",
}

#: How many times the last clone opens the GPU again.
REOPENS = 20
#: The time limits in seconds under KVM; for TCG, the limits are multiplied by TCG's factor.
_LOAD_KVM_S = 60.0
_OPEN_KVM_S = 30.0
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class GpuOpens:
    """The values of `MEASURES`: each time is the spread of all runs; other values are from the last run."""

    gpu_open_s: Spread
    accesses: int
    device_mib: float
    reopen_s: Spread
    reopen_growth_mib: float


def require_openable(settings: Settings, model: GpuModel) -> None:
    """Raise BadInputError if NVIDIA's driver can't open the GPU that the given settings emulate."""
    if settings.gpu_source is not GpuSource.EMULATED:
        return
    if model.gsp is None:
        raise BadInputError(
            f"NVIDIA's driver can't open an emulated '{model.name}', whose file has no key 'gsp'; choose "
            "another model. `harness gpu ls --json` shows the keys of each model.",
            source="--model",
        )
    if (settings.gpu_emulation or model.emulation) is not GpuEmulation.GSP:
        raise BadInputError(
            f"NVIDIA's driver opens '{model.name}' only with --gpu-emulation=gsp; add this option. "
            "Without it, the GPU has only its PCI identity, and `nvidia-smi -L` finds no device.",
            source="--gpu-emulation",
        )


def measure_gpu_open(lab: Lab, model: GpuModel, *, runs: int) -> GpuOpens:
    """Measure `runs` clones of the lab's image, which has NVIDIA's driver."""
    state = with_driver_loaded(booted(lab.node_image()), model)
    lab.ensure_checkpoint(state)
    seconds = []
    for _ in range(runs - 1):
        with lab.clone(state, "bench-open") as machine:
            seconds.append(_open(machine, model))
    with lab.clone(state, "bench-open") as machine:
        before = _memory_bytes()
        seconds.append(_open(machine, model))
        accesses = _accesses(machine.gpu())
        device_bytes = _memory_bytes() - before
        again = [_list_gpus(machine, model)]
        before = _memory_bytes()
        again += [_list_gpus(machine, model) for _ in range(REOPENS - 1)]
        growth = _memory_bytes() - before
    return GpuOpens(
        gpu_open_s=Spread.of(seconds),
        accesses=accesses,
        device_mib=device_bytes / _MIB,
        reopen_s=Spread.of(again),
        reopen_growth_mib=growth / _MIB,
    )


def with_driver_loaded(state: SavedState, model: GpuModel) -> SavedState:
    """Return a state in which NVIDIA's driver is loaded, but no GPU is plugged."""

    def make(machine: LabMachine) -> None:
        device_id = machine.hot_plug(model)
        machine.wait_for_gpu(model)
        limit_s = machine.deadline(_LOAD_KVM_S).remaining_s()
        machine.guest.output_of("nvidia-modprobe", "-u", "-c0", timeout_s=limit_s)
        machine.hot_unplug(device_id)

    return state.derive(f"{state.origin.name}-driver-loaded", make)


def _open(machine: LabMachine, model: GpuModel) -> float:
    started = time.monotonic()
    machine.hot_plug(model)
    machine.wait_for_gpu(model)
    _list_gpus(machine, model)
    return time.monotonic() - started


def _list_gpus(machine: LabMachine, model: GpuModel) -> float:
    limit_s = machine.deadline(_OPEN_KVM_S).remaining_s()
    started = time.monotonic()
    shown = machine.guest.run("nvidia-smi", "-L", timeout_s=limit_s)
    if model.title not in shown.stdout:
        raise HarnessError(
            f"`nvidia-smi -L` was expected to show '{model.title}', but the driver did not open the GPU. "
            "Use an image with NVIDIA's whole user space and --gpu-emulation=gsp.\n"
            f"{shown.render()}"
        )
    return time.monotonic() - started


def _accesses(gpu: EmulatedGpu) -> int:
    trace = gpu.trace
    return len(trace.accesses) + trace.dropped


def _memory_bytes() -> int:
    """Return how many bytes of memory this process uses; the process serves the emulated GPU."""
    resident = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(resident) * os.sysconf("SC_PAGE_SIZE")
