"""Exit codes of the node's scripts; each number has one cause."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """The exit codes of provisioning; AKS defines the codes from 4 to 235 except 70 and 143.

    Callers map an exit code to a cause, so each cause has its own exit code. If AKS does not define
    an exit code, the outcome contains a sentence about the cause.
    """

    OK = 0
    COMMAND_FAILED = 1
    """`bake` or the unit mig-partition failed; these failures have no numbers of their own."""
    INVALID_CONFIGURATION = 2
    """The configuration or the command line is wrong; argparse uses the same number."""
    UNSUPPORTED_OS = 3
    """A driver is wanted on an operating system that is not supported."""
    SYSTEMCTL_START_FAIL = 4
    """A unit did not start; this number is for units without their own number."""
    FILE_WATCH_TIMEOUT = 6
    """containerd's configuration could not be written, or is not in effect."""
    APT_INSTALL_TIMEOUT = 9
    """A package could not be installed."""
    INTERNAL_ERROR = 70
    """A defect of this program; the number is `EX_SOFTWARE` of sysexits.h."""
    GPU_DRIVERS_START_FAIL = 84
    """The driver, its image or the fabric manager could not be installed or started."""
    GPU_DRIVERS_INSTALL_TIMEOUT = 85
    """containerd did not restart after the driver was installed."""
    GPU_DEVICE_PLUGIN_START_FAIL = 86
    """The device plugin did not start."""
    GPU_INFO_ROM_CORRUPTED = 87
    """The infoROM of the GPU is corrupted; the machine needs repair, and a retry cannot help."""
    ENABLE_MANAGED_GPU_EXPERIENCE = 123
    """Both managed modes are on."""
    DRA_DRIVER_START_FAIL = 129
    """The DRA driver did not start."""
    TERMINATED = 143
    """The run was terminated by a signal, for example by `timeout(1)`."""
    NVIDIA_DRIVER_INSTALL = 224
    """It could not be determined whether the node opted out of the driver."""
    MANAGED_NVIDIA_EXP_INSTALL_FAIL = 227
    """A managed package is not in the image's cache."""
    NVIDIA_DCGM_EXPORTER_FAIL = 229
    """The managed services could not be configured; the cause has no number of its own."""
    LOOKUP_ENABLE_MANAGED_GPU_EXPERIENCE_TAG = 230
    """It could not be determined whether the node opted in to the managed services."""
    NVIDIA_DCGM_INSTALL = 235
    """The managed packages could not be prepared; the cause has no number of its own."""


class ProvisioningError(Exception):
    """The node cannot be provisioned; `exit_code` identifies the cause."""

    def __init__(self, exit_code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
