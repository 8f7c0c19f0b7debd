"""How much of its address space a guest has for the 64-bit BARs of its GPUs."""

from __future__ import annotations

import re
from pathlib import Path

from harness.machine.description.spec import Accelerator

_CPU_INFO = Path("/proc/cpuinfo")
_PHYSICAL_BITS = re.compile(r"^address sizes\s*:\s*(\d+) bits physical", re.MULTILINE)
#: Of QEMU's emulated processors (`phys-bits`), and of a host that does not say.
_USUAL_BITS = 40
#: Eight GPUs with BARs of 128 GiB, each in a window of 256.
_MOST_MIB = 2 << 20


def apertures_mib(accelerator: Accelerator, cpu_info: Path = _CPU_INFO) -> int:
    """Return what all root ports of a machine may reserve together, in MiB.

    That is a quarter of what its processor can address; under KVM it is the host's. SeaBIOS places
    the windows of all root ports below the half, with what else is on the bus, and leaves a port
    without a window where they do not fit: measured with QEMU 11.1, 40 bits and eight times 64 GiB.
    """
    bits = _USUAL_BITS
    if accelerator is Accelerator.KVM and (found := _PHYSICAL_BITS.search(cpu_info.read_text())):
        bits = int(found[1])
    return min(1 << bits - 2 - 20, _MOST_MIB)
