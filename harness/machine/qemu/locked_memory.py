"""Checks whether QEMU may lock as much memory as VFIO pins for a guest."""

from __future__ import annotations

import resource
from pathlib import Path

from harness.errors import RequirementError

#: The bit of `CAP_IPC_LOCK`, the capability that lifts the limit. See capabilities(7).
_IPC_LOCK = 14
#: MiB that VFIO pins besides the guest's memory: the device's queues and QEMU's read-only memory.
_BESIDE_MIB = 256


def has_ipc_lock(status: str) -> bool:
    """Return whether a process may lock memory without limit, from its `/proc/<pid>/status`."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> _IPC_LOCK & 1)
    return False


def locked_mib(memory_mib: int) -> int:
    """Return the MiB to lock for a guest of `memory_mib` that has a GPU of the host."""
    return memory_mib + _BESIDE_MIB


def check_locked_memory(memory_mib: int, *, limit_bytes: int, is_unlimited: bool) -> None:
    """Raise RequirementError if the limit of locked memory is too low for a guest."""
    needed_mib = locked_mib(memory_mib)
    if is_unlimited or limit_bytes == resource.RLIM_INFINITY or limit_bytes >= needed_mib << 20:
        return
    raise RequirementError(
        f"A guest of {memory_mib} MiB with a GPU of the host needs {needed_mib} MiB of locked memory, "
        f"but this process may lock {limit_bytes >> 20} MiB. Run `ulimit -l {needed_mib << 10}` in "
        "the shell that starts the tests, as a user whose hard limit allows it "
        f"(`@GROUP - memlock {needed_mib << 10}` in /etc/security/limits.conf), or add "
        f"`LimitMEMLOCK={needed_mib}M` to the systemd service that runs the tests."
    )


def require_locked_memory(memory_mib: int) -> None:
    """Raise RequirementError if QEMU, started by this process, may not lock a guest's memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = Path("/proc/self/status").read_text()
    check_locked_memory(memory_mib, limit_bytes=soft, is_unlimited=has_ipc_lock(status))
