"""How fast this host's time stamp counter counts, which an emulated guest can't find out by itself.

QEMU's emulator gives a guest the host's counter (`rdtsc`). Linux measures it at boot against a timer of 50 ms
or less; on a host that takes the processor from QEMU meanwhile, the guest was seen to find 325 MHz instead of
2596. Its clock then ran eight times as fast, and every limit in it passed eight times as early. So the guest is
told by the parameter `tsc_early_khz` of its kernel. A guest under KVM has a clock that KVM keeps.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from typing import TYPE_CHECKING

from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.provisioning.wait import Clock

#: rdtsc; shl rdx, 32; or rax, rdx; ret
_READ = bytes.fromhex("0f3148c1e2204809d0c3")
_INTERVAL_S = 0.02
#: Of so many looks at both clocks the quickest counts: the others were interrupted.
_LOOKS = 200
#: A kernel command line that differed each time would be another machine, with checkpoints of its own.
_STEP_KHZ = 1000


def time_stamp_counter_khz(clock: Clock = SYSTEM_CLOCK) -> int | None:
    """Return the frequency of this host's time stamp counter in kHz, in whole MHz.

    None where the host has none, or does not let a process run code of its own making.
    """
    if platform.machine() != "x86_64":
        return None
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    code.write(_READ)
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return measure_khz(ctypes.CFUNCTYPE(ctypes.c_uint64)(address), time.monotonic_ns, clock)


def measure_khz(
    counter: Callable[[], int], nanoseconds: Callable[[], int], clock: Clock
) -> int | None:
    """Return how fast `counter` counts in kHz, in whole MHz; None where it stands still."""
    began, from_count = _look(counter, nanoseconds)
    clock.sleep(_INTERVAL_S)
    ended, to_count = _look(counter, nanoseconds)
    if ended <= began or to_count <= from_count:
        return None
    khz = (to_count - from_count) * 1e6 / (ended - began)
    return round(khz / _STEP_KHZ) * _STEP_KHZ or None


def _look(counter: Callable[[], int], nanoseconds: Callable[[], int]) -> tuple[float, int]:
    """Return the time in nanoseconds and the count at it."""
    looks = []
    for _ in range(_LOOKS):
        before = nanoseconds()
        count = counter()
        after = nanoseconds()
        looks.append((after - before, (before + after) / 2, count))
    _, at, count = min(looks)
    return at, count
