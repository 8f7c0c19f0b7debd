"""GPU models and emulated GPUs for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gpu import Bar, GpuModel, PciIdentity, TransportBars
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.trace import DEFAULT_CAPACITY
from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from harness.provisioning.wait import Clock

MIB = 1 << 20
BAR_0 = 0xE0000000
BAR_1 = 0xE1000000

#: The content of a GPU model's file.
MODEL_FILE = """\
title: My GPU
architecture: Mine
pci:
  vendor: 0x10de
  device: 0x1234
  subsystem_vendor: 0x10de
  subsystem: 0x0001
  class_code: 0x030200
  revision: 0xa1
ids_from: "a test"
chip: 0x172
bars_mib:
  mpqemu: {0: 16, 1: 32}
  vfio_user: {0: 16}
  vfio_user_64bit: {1: 1024}
driver_kinds: [cuda]
mig: false
"""


def a_model() -> GpuModel:
    """Return an H100 with two BARs."""
    return GpuModel(
        name="h100",
        title="NVIDIA H100 80GB HBM3",
        architecture="Hopper",
        pci=PciIdentity(
            vendor=0x10DE,
            device=0x2330,
            subsystem_vendor=0x10DE,
            subsystem=0x16C1,
            class_code=0x030200,
            revision=0xA1,
        ),
        chip=0x180,
        ids_from="a test",
        bars=TransportBars(
            mpqemu={0: Bar(mib=16), 1: Bar(mib=16)},
            vfio_user={0: Bar(mib=16), 2: Bar(mib=131072, bits=64)},
        ),
        driver_kinds=("cuda",),
        has_mig=True,
    )


def a_gpu(*, clock: Clock = SYSTEM_CLOCK, trace_capacity: int = DEFAULT_CAPACITY) -> EmulatedGpu:
    """Return a GPU as it is after power-on."""
    model = a_model()
    return EmulatedGpu(model, bars=model.bars.mpqemu, clock=clock, trace_capacity=trace_capacity)


def configure(gpu: EmulatedGpu) -> EmulatedGpu:
    """Do what firmware does: write the addresses of both BARs, and enable memory decoding."""
    gpu.config_write(0x10, BAR_0, 4)
    gpu.config_write(0x14, BAR_1, 4)
    gpu.config_write(0x04, 0x0002, 2)
    return gpu
