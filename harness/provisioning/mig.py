"""Partitions a GPU into instances (MIG): the unit `mig-partition`, its profile and commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from .exit_codes import ExitCode
from .plan import Retry, Run, Step, When, Write
from .retry import StepFailedError
from .systemd import ENABLE, UNIT_DIRECTORY, drop_in, reload_units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .command import CommandResult, Runner
    from .configuration import Configuration

UNIT = "mig-partition"
PROFILE_VARIABLE = "GPU_INSTANCE_PROFILE"
START_LIMIT_S = 300.0
PARTITION_LIMIT_S = 120.0

_MIG_MODES = {"Enabled", "Disabled", "[N/A]", "N/A", "[Not Supported]"}
"""The values of a GPU's mode in `nvidia-smi`; the last three are for a GPU without MIG."""

INSTANCES = {
    "MIG1g": "19,19,19,19,19,19,19",
    "MIG2g": "14,14,14",
    "MIG3g": "9,9",
    "MIG4g": "5",
    "MIG7g": "0",
}
"""Ids of GPU instance profiles, by the profile that a node pool requests."""


class UnknownProfileError(ValueError):
    """The profile is unknown."""


def partition_commands(profile: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that partition the GPU.

    Raises UnknownProfileError if the profile `profile` does not exist.
    """
    if profile not in INSTANCES:
        raise UnknownProfileError(f"'{profile}' is not a valid GPU instance profile")
    return (
        ("nvidia-smi", "-mig", "1"),
        ("nvidia-smi", "mig", "-cgi", INSTANCES[profile]),
        ("nvidia-smi", "mig", "-cci"),
    )


def partition(runner: Runner, profile: str) -> None:
    """Partition the GPU.

    Raises UnknownProfileError if the profile does not exist, and CommandError if the GPU refuses
    the partition. After MIG is switched on, the GPU is expected to refuse the partition until the
    next reboot.
    """
    for argv in partition_commands(profile):
        runner.run(argv, timeout_s=PARTITION_LIMIT_S).check("Partitioning the GPU")


def render_unit(program: Sequence[str]) -> str:
    """Render the unit `mig-partition`, which runs before the device plugin counts the devices."""
    return (
        "[Unit]\n"
        "Description=Partition the GPU into instances\n"
        "After=nvidia-modprobe.service\n"
        "Before=nvidia-device-plugin.service\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        "RemainAfterExit=yes\n"
        f"ExecStart={shlex.join([*program, 'mig-partition'])}\n"
        "\n"
        "[Install]\n"
        "WantedBy=multi-user.target\n"
    )


def render_profile(configuration: Configuration) -> str:
    """Render the unit's drop-in, which sets the profile, and a layout that the unit ignores.

    On an overloaded host, the drop-in also multiplies the time limits of the unit's commands.
    """
    variables = {
        PROFILE_VARIABLE: configuration.gpu_instance_profile,
        "NVIDIA_MIG_PROFILE_LAYOUT": configuration.nvidia_mig_profile_layout or "",
    }
    if configuration.time_limit_multiplier != 1:
        variables["TIME_LIMIT_MULTIPLIER"] = f"{configuration.time_limit_multiplier:g}"
    lines = [f'Environment="{name}={value}"' for name, value in variables.items()]
    return "\n".join(["[Service]", *lines, ""])


def mig_steps(configuration: Configuration, program: Sequence[str]) -> list[Step]:
    """Return the steps of a node that partitions its GPU.

    The unit `mig-partition` is started once, without retries: until the reboot that switches MIG
    on, the unit is expected to fail. No reboot is made for a profile that does not exist, since a
    reboot would not help.
    """
    restart = Run(
        argv=("systemctl", "restart", UNIT),
        retry=Retry(timeout_s=START_LIMIT_S),
        is_optional=True,
        warning=f"{UNIT} did not partition the GPU yet; it runs again at the next boot.",
    )
    partition_gpu = Step(
        name="partition-gpu",
        actions=(
            Write(path=f"{UNIT_DIRECTORY}/{UNIT}.service", text=render_unit(program)),
            drop_in(UNIT, "10-mig-profile.conf", render_profile(configuration)),
            reload_units(),
            restart,
            Run(argv=("systemctl", "enable", UNIT), retry=ENABLE),
        ),
        exit_code=None,
        needs=("start-fabric-manager", "stop-fabric-manager"),
        event="AKS.CSE.ensureMigPartition",
    )
    is_known = configuration.gpu_instance_profile in INSTANCES
    return [partition_gpu, *([reboot_step()] if is_known else [])]


def reboot_step() -> Step:
    """Return the step that reboots a node whose GPU is not in MIG mode yet.

    A reboot does not help a GPU that does not support MIG, so no reboot is scheduled for such a
    GPU.
    """
    return Step(
        name="schedule-reboot",
        actions=(
            When(
                query=("nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"),
                timeout_s=30,
                condition="a GPU is not in MIG mode yet",
                otherwise="All GPUs that have MIG are in MIG mode.",
                is_met=_has_gpu_out_of_mig_mode,
                then=(Run(argv=("shutdown", "-r", "1"), retry=Retry(timeout_s=30)),),
            ),
        ),
        exit_code=ExitCode.GPU_DRIVERS_START_FAIL,
        needs=("start-kubelet", "start-dra-driver"),
    )


def _has_gpu_out_of_mig_mode(result: CommandResult) -> bool:
    """Return whether a GPU supports MIG and is not in MIG mode.

    Raises StepFailedError if the output of `nvidia-smi` contains no MIG mode, since a reboot may
    not help in this case.
    """
    modes = {line.strip() for line in result.stdout.splitlines() if line.strip()}
    if not result.ok or not modes or not modes <= _MIG_MODES:
        raise StepFailedError(
            "It is unknown whether the GPUs are in MIG mode: nvidia-smi did not print 'Enabled', "
            f"'Disabled' or '[N/A]' for each GPU.\n{result.render()}"
        )
    return "Disabled" in modes
