"""The steps that install and check the driver, and permanent failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.provisioning.cdi import Engine
from harness.provisioning.command import CommandResult
from harness.provisioning.configuration import Configuration
from harness.provisioning.driver import (
    is_configured,
    judge_gpu,
    judge_install,
    judge_resident_version,
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


def printed(stdout: str, exit_code: int = 0) -> CommandResult:
    return CommandResult(argv=("nvidia-smi",), exit_code=exit_code, stdout=stdout, stderr="")


@pytest.mark.parametrize("exit_code", [0, 14])
def test_corrupted_inforom_is_seen_for_any_exit_code(tmp_path: Path, exit_code: int) -> None:
    result = printed("WARNING: infoROM is corrupted at gpu 0000:00:1E.0\n", exit_code)

    verdict = judge_gpu(make_node(ScriptedRunner(), tmp_path), result)

    assert verdict is not None
    assert verdict.exit_code is ExitCode.GPU_INFO_ROM_CORRUPTED
    assert verdict.message == "The GPU's infoROM is corrupted; the machine needs repair."


def test_gpu_off_the_bus_is_seen_by_the_exit_code_of_the_tool(tmp_path: Path) -> None:
    result = printed(
        "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error\n", 15
    )

    verdict = judge_gpu(make_node(ScriptedRunner(), tmp_path), result)

    assert verdict is not None
    assert verdict.exit_code is ExitCode.GPU_DRIVERS_START_FAIL
    assert verdict.message == (
        "A GPU has fallen off the bus; the machine needs a reboot or repair."
    )


@pytest.mark.parametrize(
    ("stdout", "exit_code", "words"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18, "different versions"),
        ("Failed to initialize NVML: ...\n", 18, "different versions"),
        ("Unable to determine the device handle for GPU0000:A1:00.0: Unknown Error\n", 255, "off the bus"),
        ("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.\n", 0, "off the bus"),
    ],
)  # fmt: skip
def test_failure_that_waiting_does_not_repair_is_permanent(
    tmp_path: Path, stdout: str, exit_code: int, words: str
) -> None:
    verdict = judge_gpu(make_node(ScriptedRunner(), tmp_path), printed(stdout, exit_code))

    assert verdict is not None
    assert verdict.exit_code is ExitCode.GPU_DRIVERS_START_FAIL
    assert words in verdict.message


def test_words_on_stderr_count(tmp_path: Path) -> None:
    result = CommandResult(
        argv=("nvidia-smi",), exit_code=255, stdout="", stderr="GPU is lost.  Reboot the system\n"
    )

    verdict = judge_gpu(make_node(ScriptedRunner(), tmp_path), result)

    assert verdict is not None
    assert "off the bus" in verdict.message


def test_corrupted_inforom_without_a_warning_is_seen_by_the_exit_code(tmp_path: Path) -> None:
    verdict = judge_gpu(make_node(ScriptedRunner(), tmp_path), printed("", 14))

    assert verdict is not None
    assert verdict.exit_code is ExitCode.GPU_INFO_ROM_CORRUPTED


@pytest.mark.parametrize(
    ("said", "exit_code", "code"),
    [
        ("infoROM is corrupted", 15, ExitCode.GPU_INFO_ROM_CORRUPTED),
        ("GPU is lost", 14, ExitCode.GPU_DRIVERS_START_FAIL),
    ],
)
def test_words_of_the_tool_count_before_its_exit_code(
    tmp_path: Path, said: str, exit_code: int, code: ExitCode
) -> None:
    verdict = judge_gpu(make_node(ScriptedRunner(), tmp_path), printed(said, exit_code))

    assert verdict is not None
    assert verdict.exit_code is code


@pytest.mark.parametrize("code", [1, 3, 4, 6, 8, 9, 10, 12, 13, 16, 17, 255])
def test_other_exit_codes_of_the_tool_are_tried_again(tmp_path: Path, code: int) -> None:
    """9 is that no driver is loaded yet."""
    assert judge_gpu(make_node(ScriptedRunner(), tmp_path), printed("", code)) is None


def test_unknown_words_are_tried_again(tmp_path: Path) -> None:
    result = printed("words that nobody knows\n", 77)

    assert judge_gpu(make_node(ScriptedRunner(), tmp_path), result) is None


@pytest.mark.parametrize("exit_code", [0, 9])
def test_other_results_are_not_permanent_failures(tmp_path: Path, exit_code: int) -> None:
    result = printed("No devices were found\n", exit_code)

    assert judge_gpu(make_node(ScriptedRunner(), tmp_path), result) is None


@pytest.mark.parametrize(
    ("resident", "is_seen"), [(None, False), (VERSION, False), (OTHER_VERSION, True)]
)
def test_another_resident_version_is_seen(
    tmp_path: Path, resident: str | None, *, is_seen: bool
) -> None:
    if resident is not None:
        NodeFiles(tmp_path).write("/sys/module/nvidia/version", resident)

    node = make_node(ScriptedRunner(), tmp_path)
    verdict = judge_resident_version(node, version=VERSION)

    assert (verdict is not None) is is_seen
    if verdict is not None:
        assert verdict.exit_code is ExitCode.GPU_DRIVERS_START_FAIL
        assert verdict.message == (
            f"The driver {OTHER_VERSION} is loaded, so {VERSION} cannot be loaded; end the "
            "processes that use it, or reboot the node."
        )


def test_device_is_queried_on_path_or_in_the_drivers_folder() -> None:
    run = query_device(Retry(attempts=2, pause_s=1, timeout_s=3))

    assert run.argv == ("nvidia-smi",)
    assert run.fallback_program == "/usr/local/nvidia/bin/nvidia-smi"
    assert run.judge is judge_gpu
    assert run.retry == Retry(attempts=2, pause_s=1, timeout_s=3)


@pytest.mark.parametrize(
    ("is_asked", "action", "is_configured_"),
    [
        (True, Action.INSTALL, True),
        (True, Action.INSTALL_SKIP_BUILD, True),
        (False, Action.INSTALL, False),
        (False, Action.INSTALL_SKIP_BUILD, False),
        (False, Action.TEARDOWN_INSTALL, True),
    ],
)
def test_driver_is_configured_on_request_or_after_a_teardown(
    action: Action, *, is_asked: bool, is_configured_: bool
) -> None:
    configuration = Configuration(config_gpu_driver_if_needed=is_asked)

    assert is_configured(configuration, Decision(action=action)) is is_configured_


def test_plan_of_validation_installs_and_mends_nothing() -> None:
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


def test_validation_of_a_node_with_cri_o_asks_nothing_of_containerd() -> None:
    plan = validate_plan(Configuration(container_runtime=Engine.CRI_O))

    assert [step.name for step in plan.steps] == [
        "validate-probe",
        "validate-query",
        "validate-cdi-spec",
    ]


@pytest.mark.parametrize(
    ("resident", "exit_code", "words"),
    [
        (OTHER_VERSION, 1, f"The driver {OTHER_VERSION} is loaded"),
        (VERSION, 1, "A GPU has fallen off the bus"),
        (None, 1, "A GPU has fallen off the bus"),
        (VERSION, 0, None),
    ],
)
def test_another_loaded_version_is_reported_before_messages_of_the_kernel(
    tmp_path: Path, resident: str | None, exit_code: int, words: str | None
) -> None:
    if resident is not None:
        NodeFiles(tmp_path).write("/sys/module/nvidia/version", f"{resident}\n")
    runner = ScriptedRunner()
    runner.expect("dmesg", stdout="NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n")

    node = make_node(runner, tmp_path)
    verdict = judge_install(node, printed("", exit_code), version=VERSION)

    assert (verdict is None) == (words is None)
    if verdict is not None and words is not None:
        assert verdict.message.startswith(words)


def test_mismatch_of_versions_is_recognised_by_its_meaning(tmp_path: Path) -> None:
    verdict = judge_gpu(make_node(ScriptedRunner(), tmp_path), printed("", 18))

    assert verdict is not None
    assert verdict.message == (
        "The driver's programs and its loaded module have different versions."
    )
    assert verdict.exit_code is ExitCode.GPU_DRIVERS_START_FAIL


def test_words_that_a_retry_may_mend_do_not_hide_the_exit_code(tmp_path: Path) -> None:
    verdict = judge_gpu(
        make_node(ScriptedRunner(), tmp_path), printed("Unknown Error of a new kind\n", 15)
    )

    assert verdict is not None
