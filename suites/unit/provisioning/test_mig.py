"""Partitioning of a GPU."""

from __future__ import annotations

import pytest

from harness.provisioning.command import CommandError, CommandResult
from harness.provisioning.configuration import Configuration
from harness.provisioning.exit_codes import ExitCode
from harness.provisioning.mig import (
    UnknownProfileError,
    mig_steps,
    partition,
    partition_commands,
    reboot_step,
    render_profile,
    render_unit,
)
from harness.provisioning.plan import When
from harness.shell.mocks.scripted_runner import ScriptedRunner

from .fakes import PROGRAM

CONFIGURATION = Configuration(
    gpu_instance_profile="MIG3g", mig_node=True, nvidia_mig_profile_layout="x"
)


@pytest.mark.parametrize(
    ("profile", "instances"),
    [
        ("MIG1g", "19,19,19,19,19,19,19"),
        ("MIG2g", "14,14,14"),
        ("MIG3g", "9,9"),
        ("MIG4g", "5"),
        ("MIG7g", "0"),
    ],
)
def test_profile_gives_its_instances(profile: str, instances: str) -> None:
    assert [" ".join(argv) for argv in partition_commands(profile)] == [
        "nvidia-smi -mig 1",
        f"nvidia-smi mig -cgi {instances}",
        "nvidia-smi mig -cci",
    ]


@pytest.mark.parametrize("profile", ["MIG5g", "mig1g", ""])
def test_other_profile_is_refused(profile: str) -> None:
    with pytest.raises(UnknownProfileError) as error:
        partition(ScriptedRunner(), profile)

    assert str(error.value) == f"'{profile}' is not a valid GPU instance profile"


def test_gpu_is_partitioned_in_order() -> None:
    with (
        ScriptedRunner()
        .expect("nvidia-smi -mig 1", timeout_s=120)
        .expect("nvidia-smi mig -cgi 5", timeout_s=120)
        .expect("nvidia-smi mig -cci", timeout_s=120) as runner
    ):
        partition(runner, "MIG4g")


def test_gpu_that_refuses_ends_the_partitioning() -> None:
    with (
        ScriptedRunner()
        .expect("nvidia-smi -mig 1")
        .expect("nvidia-smi mig -cgi 5", exit_code=6) as runner,
        pytest.raises(
            CommandError, match=r"^Partitioning the GPU failed\.\ncommand: nvidia-smi mig"
        ),
    ):
        partition(runner, "MIG4g")


def test_unit_is_done_before_the_device_plugin_counts() -> None:
    text = render_unit((*PROGRAM[:3], "/opt/a b.pyz"))

    assert text == (
        "[Unit]\n"
        "Description=Partition the GPU into instances\n"
        "After=nvidia-modprobe.service\n"
        "Before=nvidia-device-plugin.service\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        "RemainAfterExit=yes\n"
        "ExecStart=/usr/bin/python3 -I -S '/opt/a b.pyz' mig-partition\n"
        "\n"
        "[Install]\n"
        "WantedBy=multi-user.target\n"
    )


@pytest.mark.parametrize("layout", ["x", None])
def test_unit_gets_its_profile_from_a_drop_in(layout: str | None) -> None:
    configuration = Configuration(
        gpu_instance_profile="MIG3g", mig_node=True, nvidia_mig_profile_layout=layout
    )

    assert render_profile(configuration) == (
        "[Service]\n"
        'Environment="GPU_INSTANCE_PROFILE=MIG3g"\n'
        f'Environment="NVIDIA_MIG_PROFILE_LAYOUT={layout or ""}"\n'
    )


def test_partitioning_is_tried_once_and_never_fatal() -> None:
    (step,) = mig_steps(CONFIGURATION, PROGRAM)

    assert step.exit_code is None
    assert step.event == "AKS.CSE.ensureMigPartition"
    assert step.describe()[-4:] == (
        '      | Environment="NVIDIA_MIG_PROFILE_LAYOUT=x"',
        "    systemctl daemon-reload  # limit 25 s; failure ignored",
        "    systemctl restart mig-partition  # limit 300 s; failure ignored",
        "    systemctl enable mig-partition  # 120 attempts, 5 s apart, limit 25 s each",
    )
    assert getattr(step.actions[3], "warning", None) == (
        "mig-partition did not partition the GPU yet; it runs again after the reboot."
    )


@pytest.mark.parametrize(
    ("stdout", "exit_code", "reboots"),
    [
        ("Enabled\nEnabled\n", 0, False),
        ("Enabled\nDisabled\n", 0, True),
        ("Disabled\n", 0, True),
        ("[N/A]\n", 0, True),
        ("\n", 0, True),
        ("Enabled\n", 1, True),
    ],
)
def test_node_reboots_until_every_gpu_is_in_mig_mode(
    stdout: str, exit_code: int, *, reboots: bool
) -> None:
    step = reboot_step()
    (when,) = step.actions

    assert isinstance(when, When)
    result = CommandResult(argv=(), exit_code=exit_code, stdout=stdout, stderr="")
    assert when.is_met(result) is reboots
    assert when.otherwise == "All GPUs are in MIG mode."
    assert step.exit_code is ExitCode.GPU_DRIVERS_START_FAIL
    assert when.describe() == (
        "nvidia-smi --query-gpu=mig.mode.current --format=csv,noheader  # limit 30 s",
        "if a GPU is not in MIG mode yet:",
        "  shutdown -r 1  # limit 30 s",
    )
