"""What is the same for every driver that has QEMU save and load its devices' state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.machine.spec import DirectKernel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.machine.eventlog import QmpEvent
    from harness.machine.spec import MachineSpec

MIGRATE_S = 120.0
LAST_WORDS_S = 2.0
#: The memory stays in its file, and what becomes of the state is told by events.
CAPABILITIES = [
    {"capability": "x-ignore-shared", "state": True},
    {"capability": "events", "state": True},
]
#: Else the guest's card announces itself to a network that knows nobody else, and every
#: listener to netlink wakes up: a third of what a clone does until its first answer.
QUIET: Mapping[str, object] = {"announce-rounds": 0}

#: More than the set-up code of any kernel; Documentation/arch/x86/boot.rst has 64 sectors at most.
_KERNEL_HEADER_BYTES = 64 << 10
_ENDS = frozenset({"completed", "failed", "cancelled"})


def is_end(event: QmpEvent) -> bool:
    """Tell whether QEMU has saved or loaded a state, or has given up."""
    return event.name == "MIGRATION" and event.data.get("status") in _ENDS


def with_kernel_header(spec: MachineSpec, folder: Path) -> MachineSpec:
    """Return what a restored machine is started with.

    Its guest has its kernel in memory, but QEMU has to place the option ROM of `-kernel` as it did
    for the template. It asks no more of the file than its header, and reading all of it takes
    10 ms of a clone's 200.
    """
    if not spec.is_restored or not isinstance(spec.kernel, DirectKernel):
        return spec
    head = folder / "kernel-header"
    with spec.kernel.vmlinuz.open("rb") as kernel:
        head.write_bytes(kernel.read(_KERNEL_HEADER_BYTES))
    return replace(spec, kernel=replace(spec.kernel, vmlinuz=head))
