"""The steps that install and check the driver, and permanent failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.fixtures.recordings import load_recording
from harness.provisioning.cdi import Engine
from harness.provisioning.command import CommandResult
from harness.provisioning.configuration import Configuration
from harness.provisioning.driver import (
    is_configured,
    judge_gpu,
    judge_install,
    query_device,
    validate_plan,
)
from harness.provisioning.exit_codes import ExitCode
from harness.provisioning.node_files import NodeFiles
from harness.provisioning.plan import Retry
from harness.provisioning.prebake import Action, Decision
from harness.shell.mocks.scripted_runner import ScriptedRunner

from .fakes import OTHER_VERSION, VERSION, make_node

if TYPE_CHECKING:
    from pathlib import Path


LOST, CORRUPT = "A GPU has fallen off the bus", "The GPU's infoROM is corrupted"
NO_GPU = "The driver has no GPU that works"
NO_ANSWER = "A GPU did not answer"
TABLE = load_recording("nvidia-smi/580.159.04-h100-table").text
MISMATCH = "The driver's programs and its loaded module have different versions"


def test_nvidia_smi_is_not_retried_after_a_permanent_failure(
    tmp_path: Path,
) -> None:
    """The message of the tool is preferred to its exit code."""
    node = make_node(ScriptedRunner(), tmp_path)
    rows = {
        ("WARNING: infoROM is corrupted at gpu 0000:00:1E.0\n", "", 0): CORRUPT,
        ("", "", 14): CORRUPT,
        ("infoROM is corrupted", "", 15): CORRUPT,
        ("GPU is lost", "", 14): LOST,
        ("", "GPU is lost.  Reboot the system\n", 255): LOST,
        ("Unknown Error of a new kind\n", "", 15): LOST,
        ("Failed to initialize NVML: ...\n", "", 18): MISMATCH,
        ("No devices were found\n", "", 0): NO_GPU,
        (TABLE, "", 0): None,
        (TABLE.replace("33C", "ERR!"), "", 0): NO_ANSWER,
        (TABLE.replace("| N/A", "|ERR!"), "", 0): NO_ANSWER,
        (TABLE.replace("70W /  700W", "ERR! / ERR!"), "", 0): NO_ANSWER,
        # The power usage of a sound V100 and of a sound Quadro P1000.
        (TABLE.replace(" 70W /  700W", "ERR! /  250W"), "", 0): None,
        (TABLE.replace(" 70W /  700W", "ERR! /   N/A"), "", 0): None,
        (TABLE.replace("P0             70W", "ERR!          ERR!"), "", 0): NO_ANSWER,
        (TABLE.replace("NVIDIA H100 80GB HBM3", "ERR!                 "), "", 0): NO_ANSWER,
        (TABLE.replace("70W /  700W", "Unknown Error"), "", 0): NO_ANSWER,
        (TABLE.replace("  No running processes", "  0  9  C  ./ERR! GPU is lost"), "", 0): None,
        (f"{TABLE}WARNING: infoROM is corrupted at gpu 0000:00:1E.0\n", "", 0): CORRUPT,
        ("No devices were found\n", "", 6): None,
        ("No devices were found\n", "", 9): None,
        ("Failed to initialize NVML: No supported GPUs were found\n", "", 255): None,
        ("words that nobody knows\n", "", 77): None,
    }

    for (stdout, stderr, exit_code), words in rows.items():
        verdict = judge_gpu(
            node,
            CommandResult(argv=("nvidia-smi",), exit_code=exit_code, stdout=stdout, stderr=stderr),
        )

        assert (verdict is None) == (words is None), (stdout, exit_code)
        if verdict is not None and words is not None:
            assert verdict.message.startswith(words)
            assert (verdict.exit_code is ExitCode.GPU_INFO_ROM_CORRUPTED) == (words is CORRUPT)
            assert words is CORRUPT or verdict.exit_code is ExitCode.GPU_DRIVERS_START_FAIL


def test_nvidia_smi_is_run_from_path_or_from_the_driver_folder() -> None:
    run = query_device(Retry(attempts=2, pause_s=1, timeout_s=3))

    assert run.argv == ("nvidia-smi",)
    assert run.fallback_program == "/usr/local/nvidia/bin/nvidia-smi"


def test_driver_is_configured_on_request_or_after_a_teardown() -> None:
    rows = {
        (True, Action.INSTALL): True,
        (False, Action.INSTALL_SKIP_BUILD): False,
        (False, Action.TEARDOWN_INSTALL): True,
    }

    assert {
        (is_asked, action): is_configured(
            Configuration(config_gpu_driver_if_needed=is_asked), Decision(action=action)
        )
        for is_asked, action in rows
    } == rows


def test_plan_of_validation_contains_only_checks() -> None:
    assert validate_plan(Configuration()).describe() == (
        "validate-probe  # failure: exit 84\n"
        "    nvidia-modprobe -u -c0  # 24 attempts, 5 s apart, limit 25 s each\n"
        "validate-query  # failure: exit 84; after validate-probe\n"
        "    nvidia-smi  # 24 attempts, 5 s apart, limit 30 s each\n"
        "validate-cdi-spec  # failure: exit 84; after validate-query\n"
        "    systemctl show --property=LoadState --value nvidia-cdi-refresh.service"
        "  # limit 30 s\n"
        "    if the unit nvidia-cdi-refresh.service exists:\n"
        "      expect that nvidia-cdi-refresh.service has not failed\n"
        "      expect a device of nvidia.com/gpu in /var/run/cdi/nvidia.yaml\n"
        "validate-runtime-handler  # failure: exit 84; after validate-cdi-spec\n"
        "    expect /usr/bin/nvidia-container-runtime in containerd config dump"
    )
    assert {step.groups for step in validate_plan(Configuration()).steps} == {
        ("AKS.CSE.ensureGPUDrivers.validateGPUDrivers",)
    }


def test_validation_of_a_node_with_cri_o_does_not_check_containerd() -> None:
    plan = validate_plan(Configuration(container_runtime=Engine.CRI_O))

    assert [step.name for step in plan.steps] == [
        "validate-probe",
        "validate-query",
        "validate-cdi-spec",
    ]


def test_error_for_another_loaded_driver_version_takes_priority_over_kernel_messages(
    tmp_path: Path,
) -> None:
    files = NodeFiles(tmp_path)
    runner = ScriptedRunner()
    runner.expect("dmesg", stdout="NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n", times=3)
    node = make_node(runner, tmp_path)
    rows = {
        (None, 1): LOST,
        (VERSION, 1): LOST,
        (VERSION, 0): None,
        (OTHER_VERSION, 1): f"The driver {OTHER_VERSION} is loaded, so {VERSION} cannot be loaded; end the ",
    }  # fmt: skip

    for (resident, exit_code), words in rows.items():
        if resident is not None:
            files.write("/sys/module/nvidia/version", f"{resident}\n")
        result = CommandResult(argv=("ctr",), exit_code=exit_code, stdout="", stderr="")
        verdict = judge_install(node, result, version=VERSION)

        assert (verdict is None) == (words is None), (resident, exit_code)
        assert verdict is None or verdict.message.startswith(words or "")
