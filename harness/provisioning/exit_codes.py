"""Exit codes of the node's scripts: one number, one cause."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What a process of this package exits with; the numbers from 4 to 235 are AKS' own.

    A caller maps the number back to its cause, so no cause shares a number and no step makes
    up another. Numbers outside AKS' list are ours and carry a sentence in the outcome.
    """

    OK = 0
    COMMAND_FAILED = 1
    """`bake`, or the unit mig-partition, failed: neither has numbers for its causes."""
    INVALID_CONFIGURATION = 2
    """The configuration or the command line is wrong; as argparse says it."""
    UNSUPPORTED_OS = 3
    """A driver is wanted on an operating system that these steps are not written for."""
    SYSTEMCTL_START_FAIL = 4
    """A unit that has no number of its own did not start."""
    FILE_WATCH_TIMEOUT = 6
    """containerd's configuration could not be written."""
    APT_INSTALL_TIMEOUT = 9
    """A package could not be installed."""
    INTERNAL_ERROR = 70
    """A defect of this program; the number is `EX_SOFTWARE` of sysexits.h."""
    GPU_DRIVERS_START_FAIL = 84
    """The driver, its image or the fabric manager did not come up."""
    GPU_DRIVERS_INSTALL_TIMEOUT = 85
    """containerd did not come back after the driver was installed."""
    GPU_DEVICE_PLUGIN_START_FAIL = 86
    """The device plugin did not start."""
    GPU_INFO_ROM_CORRUPTED = 87
    """The GPU's infoROM is corrupted; the machine needs repair, not another try."""
    ENABLE_MANAGED_GPU_EXPERIENCE = 123
    """Both managed modes were asked for."""
    DRA_DRIVER_START_FAIL = 129
    """The DRA driver did not start."""
    TERMINATED = 143
    """The run was ended from outside, as by `timeout(1)`."""
    NVIDIA_DRIVER_INSTALL = 224
    """Whether the node opted out of the driver could not be looked up."""
    MANAGED_NVIDIA_EXP_INSTALL_FAIL = 227
    """A managed package is not in the image's cache."""
    NVIDIA_DCGM_EXPORTER_FAIL = 229
    """The managed services could not be configured, for a cause without its own number."""
    LOOKUP_ENABLE_MANAGED_GPU_EXPERIENCE_TAG = 230
    """Whether the node opted in to the managed services could not be looked up."""
    NVIDIA_DCGM_INSTALL = 235
    """The managed packages could not be prepared, for a cause without its own number."""


class ProvisioningError(Exception):
    """The node cannot be provisioned; carries the exit code that says why."""

    def __init__(self, exit_code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
