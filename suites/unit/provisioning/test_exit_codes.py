"""Exit codes: the numbers are an interface for other programs."""

from __future__ import annotations

from harness.provisioning.exit_codes import ExitCode

AKS_CODES = {
    4: "SYSTEMCTL_START_FAIL",
    6: "FILE_WATCH_TIMEOUT",
    9: "APT_INSTALL_TIMEOUT",
    84: "GPU_DRIVERS_START_FAIL",
    85: "GPU_DRIVERS_INSTALL_TIMEOUT",
    86: "GPU_DEVICE_PLUGIN_START_FAIL",
    87: "GPU_INFO_ROM_CORRUPTED",
    123: "ENABLE_MANAGED_GPU_EXPERIENCE",
    129: "DRA_DRIVER_START_FAIL",
    224: "NVIDIA_DRIVER_INSTALL",
    227: "MANAGED_NVIDIA_EXP_INSTALL_FAIL",
    229: "NVIDIA_DCGM_EXPORTER_FAIL",
    230: "LOOKUP_ENABLE_MANAGED_GPU_EXPERIENCE_TAG",
    235: "NVIDIA_DCGM_INSTALL",
}
OWN_CODES = {
    0: "OK",
    1: "COMMAND_FAILED",
    2: "INVALID_CONFIGURATION",
    3: "UNSUPPORTED_OS",
    70: "INTERNAL_ERROR",
    143: "TERMINATED",
}


def test_exit_codes_have_the_expected_numbers_and_names() -> None:
    assert {int(code): code.name for code in ExitCode} == {**AKS_CODES, **OWN_CODES}
    assert len(ExitCode.__members__) == len(ExitCode)
