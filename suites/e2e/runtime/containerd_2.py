"""A node with containerd 2 from Debian sid, since no tested distribution has containerd 2.

Its programs need no newer libraries than the images have. Containerd 2 starts with the data of the
older containerd, as after an upgrade.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from harness.debian_packages import ensure_unpacked
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState

_RELEASE = "sid"
_PACKAGE = "containerd"
_PROGRAMS = ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr")
#: Seconds under KVM for writing the programs (about 80 MiB) and restarting containerd.
_REPLACE_KVM_S = 60.0


def ensure_containerd_2(cache: Path, report: Callable[[str], None]) -> Path:
    """Return the folder with the programs; unpack them first if the cache does not have them.

    Raises RequirementError if mmdebstrap is missing, and CommandError if mmdebstrap fails.
    """
    return ensure_unpacked(
        _PROGRAMS,
        package=_PACKAGE,
        release=_RELEASE,
        store=cache / f"{_PACKAGE}-{_RELEASE}",
        runner=LocalRunner(),
        report=report,
    )


def with_containerd_2(state: SavedState, *, root: Path) -> SavedState:
    """Return the saved state in which the containerd of the folder `root` runs."""
    programs = {f"/{path}": (root / path).read_bytes() for path in _PROGRAMS}

    def make(machine: LabMachine) -> None:
        deadline = machine.deadline(_REPLACE_KVM_S)
        for path, content in programs.items():
            machine.agent.write_bytes(path, content, deadline, 0o755)
        machine.guest.output_of(
            *("systemctl", "restart", "containerd"), timeout_s=max(1.0, deadline.remaining_s())
        )

    digests = {path: hashlib.sha256(content).hexdigest() for path, content in programs.items()}
    return state.derive(f"{state.origin.name}-containerd-2", make, digests)
