"""Partitioning of a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import CommandError, CommandResult
from harness.provisioning.configuration import Configuration
from harness.provisioning.exit_codes import ExitCode
from harness.provisioning.mig import (
    INSTANCES,
    UnknownProfileError,
    mig_steps,
    partition,
    reboot_step,
    render_profile,
    render_unit,
)
from harness.provisioning.plan import When
from harness.provisioning.retry import StepFailedError
from harness.shell.mocks.scripted_runner import ScriptedRunner

from .fakes import GPU_NODE, PROGRAM, Invocation

if TYPE_CHECKING:
    from .simulation import SimulatedNode

CONFIGURATION = Configuration(
    gpu_instance_profile="MIG3g", mig_node=True, nvidia_mig_profile_layout="x"
)


def test_each_mig_profile_has_the_expected_gpu_instance_profile_ids() -> None:
    assert INSTANCES == {
        "MIG1g": "19,19,19,19,19,19,19",
        "MIG2g": "14,14,14",
        "MIG3g": "9,9",
        "MIG4g": "5",
        "MIG7g": "0",
    }


def test_gpu_is_partitioned_after_mig_mode_is_enabled() -> None:
    with pytest.raises(UnknownProfileError, match="'mig1g' is not a valid GPU instance profile"):
        partition(ScriptedRunner(), "mig1g")
    with (
        ScriptedRunner()
        .expect("nvidia-smi -mig 1", timeout_s=120)
        .expect("nvidia-smi mig -cgi 5", timeout_s=120)
        .expect("nvidia-smi mig -cci", timeout_s=120) as runner
    ):
        partition(runner, "MIG4g")


def test_failed_command_ends_the_partitioning() -> None:
    for fails in (["nvidia-smi -mig 1"], ["nvidia-smi -mig 1", "nvidia-smi mig -cgi 5"]):
        runner = ScriptedRunner()
        for command in fails:
            runner.expect(command, exit_code=int(command == fails[-1]) * 6)

        with (
            runner,
            pytest.raises(
                CommandError, match=rf"^Partitioning the GPU failed\.\ncommand: {fails[-1]}"
            ),
        ):
            partition(runner, "MIG4g")


def test_mig_unit_runs_a_program_whose_path_has_a_blank() -> None:
    text = render_unit((*PROGRAM[:3], "/opt/a b.pyz"))

    assert "ExecStart=/usr/bin/python3 -I -S '/opt/a b.pyz' mig-partition\n" in text


def test_drop_in_of_the_mig_unit_sets_the_profile_and_the_time_limit_multiplier() -> None:
    for layout in ("x", None):
        assert render_profile(replace(CONFIGURATION, nvidia_mig_profile_layout=layout)) == (
            "[Service]\n"
            'Environment="GPU_INSTANCE_PROFILE=MIG3g"\n'
            f'Environment="NVIDIA_MIG_PROFILE_LAYOUT={layout or ""}"\n'
        )
    overloaded = replace(CONFIGURATION, time_limit_multiplier=6.5)
    assert 'Environment="TIME_LIMIT_MULTIPLIER=6.5"\n' in render_profile(overloaded)


def test_no_reboot_is_planned_for_a_mig_profile_that_does_not_exist() -> None:
    step, reboot = mig_steps(CONFIGURATION, PROGRAM)
    (alone,) = mig_steps(replace(CONFIGURATION, gpu_instance_profile="MIG5g"), PROGRAM)

    assert reboot == reboot_step()
    assert alone.name == step.name == "partition-gpu"
    assert "it runs again at the next boot" in (getattr(step.actions[3], "warning", None) or "")


def test_reboot_is_scheduled_if_a_gpu_that_supports_mig_is_not_in_mig_mode() -> None:
    """The driver reports `[N/A]` for a GPU without MIG, such as an L4; a reboot does not help."""
    step = reboot_step()
    (when,) = step.actions
    assert isinstance(when, When)
    rows = {
        "Enabled\nEnabled\n": False,
        "Enabled\nDisabled\n": True,
        "Disabled\n": True,
        "[N/A]\n": False,
        "N/A\n[Not Supported]\n[N/A]\nDisabled\nEnabled\n": True,
        "N/A\n[Not Supported]\n[N/A]\nEnabled\n": False,
        " Enabled \r\n\n Disabled\r\n\n": True,
    }

    assert {stdout: when.is_met(modes(stdout)) for stdout in rows} == rows
    assert step.exit_code is ExitCode.GPU_DRIVERS_START_FAIL
    assert when.describe() == (
        "nvidia-smi --query-gpu=mig.mode.current --format=csv,noheader  # limit 30 s",
        "if a GPU is not in MIG mode yet:",
        "  shutdown -r 1  # limit 30 s",
    )


def test_unknown_mig_mode_raises_an_error_and_schedules_no_reboot() -> None:
    (when,) = reboot_step().actions
    assert isinstance(when, When)

    for result in (
        *map(modes, ("\n", "Enabled\nPartly\n", "disabled\n", "Disabled\n[Unknown Error]\n")),
        modes("Disabled\n", exit_code=15),
    ):
        with pytest.raises(StepFailedError, match="It is unknown whether the GPUs are in MIG"):
            when.is_met(result)


def modes(stdout: str, exit_code: int = 0) -> CommandResult:
    return CommandResult(argv=("nvidia-smi",), exit_code=exit_code, stdout=stdout, stderr="")


@pytest.mark.parametrize(("modes", "is_last"), [("Disabled\n", True), ("Enabled\n[N/A]\n", False)])
def test_boot_schedules_a_reboot_only_if_a_gpu_is_not_in_mig_mode(
    simulated: SimulatedNode, invocation: Invocation, modes: str, *, is_last: bool
) -> None:
    simulated.units.add("mig-partition")
    simulated.mig_modes = modes

    assert invocation.run("boot", {**GPU_NODE, "gpu_instance_profile": "MIG1g"}) == 0

    assert (("shutdown", "-r", "1") in simulated.calls) is is_last
