"""Machine descriptions for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.gpu import GpuAttachment
from harness.machine.description.argv import Channels
from harness.machine.description.spec import (
    Accelerator,
    DirectKernel,
    MachineSpec,
)

CHANNELS = Channels(qmp_fd=7, serial_fd=9, agent_fd=11)
LOG = Path("/runs/serial.log")
FOLDER = Path("/images/debian-12")


def a_machine_spec(**changes: Any) -> MachineSpec:
    spec = MachineSpec(
        name="node",
        accelerator=Accelerator.TCG,
        kernel=DirectKernel(
            version="6.1.0-56", vmlinuz=FOLDER / "vmlinuz", initrd=FOLDER / "initrd.img"
        ),
        disk=Path("/runs/disk.qcow2"),
    )
    return replace(spec, **changes)


def an_attachment(device_id: str = "gpu0", *, fd: int = 11, window_mib: int = 64) -> GpuAttachment:
    return GpuAttachment(
        id=device_id, driver="x-pci-proxy-dev", fd=fd, root_port_window_mib=window_mib
    )
