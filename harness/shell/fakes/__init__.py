"""Stateful fakes of the tools that provisioning runs, for the `shell` fixture.

Each fake answers like the real tool, from a state that a test sets up and inspects afterwards.
Tests compare the fakes with recordings of the real tools (`fixtures/data/recordings/dialogues`).
"""

from __future__ import annotations

from harness.shell.fakes.containerd import Containerd, ContainerRun
from harness.shell.fakes.dkms import Dkms
from harness.shell.fakes.dkms_tree import Source
from harness.shell.fakes.fake import Fake
from harness.shell.fakes.invocation import UnknownInvocationError
from harness.shell.fakes.kernel_modules import KernelModules, Module
from harness.shell.fakes.metadata import InstanceMetadata
from harness.shell.fakes.package_state import Package
from harness.shell.fakes.packages import Packages
from harness.shell.fakes.systemd import Systemd
from harness.shell.fakes.units import ALWAYS, Unit

__all__ = [
    "ALWAYS",
    "ContainerRun",
    "Containerd",
    "Dkms",
    "Fake",
    "InstanceMetadata",
    "KernelModules",
    "Module",
    "Package",
    "Packages",
    "Source",
    "Systemd",
    "Unit",
    "UnknownInvocationError",
]
