"""A node with containerd 2, which no tested distribution has: Debian sid's, in place of the image's own.

Its programs need nothing newer than the images have. It starts with what the older one has stored,
as after an upgrade.
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
#: Seconds under KVM to write the programs, some 80 MiB, and to restart containerd.
_REPLACE_KVM_S = 60.0


def ensure_containerd_2(cache: Path, report: Callable[[str], None]) -> Path:
    """Return a folder with the programs, unpacked where the cache has none.

    Raises RequirementError if mmdebstrap is missing, CommandError if it fails.
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
