"""For each exit code, a machine ends with this code and with an error that names the cause.

`suites/e2e/services` tests the codes 4, 9, 86, 123, 129 and 227. No machine ends with 70, which
reports a defect of the program. No machine ends with 235 either, since both causes of a failure in
the step of 235 have codes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.evidence import RECORD_PATH
from harness.gpu.script import GpuScript
from harness.provisioner import BAKE, BOOT
from harness.provisioner.gpu_node import CONFIG_PATH, METADATA_CACHE, OUTCOME_PATH
from suites.e2e.guest_script import shell
from suites.e2e.promises import promise
from suites.e2e.services.units import (
    BRIEF,
    DCGM,
    EXPORTER,
    KUBELET,
    MANAGED,
    PLUGIN,
    drop_in,
    evidence_of,
    smi_settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.api import Argv, GuestFile
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_main.py"
CONTAINERD = "/etc/containerd/config.toml"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A fault of a node, and how provisioning ends on this node."""

    code: int
    sentence: str
    step: str | None = None
    """The step that fails; None if the run ends before its first step."""
    command: str = BOOT
    config: Mapping[str, object] = field(default_factory=dict)
    before: str = ""
    """A shell script that runs before provisioning."""
    files: Sequence[GuestFile] = ()
    gpu: GpuScript = field(default_factory=GpuScript)
    keeps_driver: bool = False
    """The driver of an earlier bake must still be there."""


def metadata(value: str) -> str:
    return f"printf '%s' '{value}' >{METADATA_CACHE}"


ENDINGS: Mapping[str, Ending] = {
    "1 bake fails": Ending(
        code=1,
        command=BAKE,
        config={
            **BRIEF,
            "gpu_node": False,
            "feature_flags": "NVIDIA_CUDA_PREBAKE",
            "gpu_image_sha": "absent",
        },
        step="fetch-driver-image",
        keeps_driver=True,
        sentence="Step 'fetch-driver-image' failed.",
    ),
    "1 component list is cut": Ending(
        code=1,
        command=BAKE,
        config={"gpu_node": False, "feature_flags": "NVIDIA_CUDA_PREBAKE"},
        before="mkdir -p /opt/azure; printf '{' >/opt/azure/components.json",
        keeps_driver=True,
        sentence="The component list '/opt/azure/components.json' cannot be read",
    ),
    "1 build tools cannot be installed": Ending(
        code=1,
        command=BAKE,
        config={
            **BRIEF,
            "gpu_node": False,
            "feature_flags": "another_flag, NVIDIA_CUDA_PREBAKE",
        },
        # This `apt-get` fails only if it is told not to ask questions.
        before=(
            "printf '%s\\n' '#!/bin/sh' '[ \"$DEBIAN_FRONTEND\" != noninteractive ] || exit 100' "
            ">/usr/local/sbin/apt-get; chmod +x /usr/local/sbin/apt-get"
        ),
        step="install-build-tools",
        keeps_driver=True,
        sentence="Step 'install-build-tools' failed.",
    ),
    "1 bake records another kernel": Ending(
        code=1,
        command=BAKE,
        config={"gpu_node": False, "feature_flags": "NVIDIA_CUDA_PREBAKE"},
        # Provisioning starts the container of the installer with `ctr`.
        before=(
            "printf '%s\\n' '#!/bin/sh' '/usr/bin/ctr \"$@\"; code=$?' "
            f"'sed -i s/^kernel=.*/kernel=6.1.0-5-cloud-amd64/ {RECORD_PATH} 2>/dev/null' "
            "'exit $code' >/usr/local/bin/ctr; chmod +x /usr/local/bin/ctr"
        ),
        step="verify-record",
        sentence="built for kernel 6.1.0-5-cloud-amd64, expected",
    ),
    "2 wrong value": Ending(
        code=2,
        config={"gpu_needs_fabric_manager": "perhaps"},
        sentence="The field 'gpu_needs_fabric_manager' must be either true or false, but is "
        "'perhaps'.",
    ),
    "2 unknown field": Ending(
        code=2, config={"gpu_nodes": True}, sentence="The field 'gpu_nodes' is unknown"
    ),
    "2 MIG without a profile": Ending(
        code=2,
        config={"mig_node": True},
        sentence="The field 'mig_node' contradicts 'gpu_instance_profile'",
    ),
    "2 no version": Ending(
        code=2,
        config={"gpu_driver_version": ""},
        sentence="The field 'gpu_driver_version' is not set",
    ),
    "2 configuration is cut": Ending(
        code=2,
        before=f"printf '{{' >{CONFIG_PATH}",
        sentence=f"The configuration '{CONFIG_PATH}' is not JSON",
    ),
    "3 unsupported system": Ending(
        code=3,
        before="rm /etc/os-release; echo ID=alpine >/etc/os-release",
        sentence="'/etc/os-release' names neither Debian nor Ubuntu",
    ),
    "6 folder for a configuration": Ending(
        code=6,
        before=f"rm {CONTAINERD}; mkdir {CONTAINERD}",
        sentence=f"containerd's configuration is not usable. '{CONTAINERD}'",
    ),
    "6 configuration is cut": Ending(
        code=6,
        before=f"printf 'version = 2\\n[plugins.\"io' >{CONTAINERD}",
        sentence=f"containerd's configuration '{CONTAINERD}' cannot be edited: ",
    ),
    "6 configuration cannot be written": Ending(
        code=6,
        before=f"printf 'version = 2\\n' >{CONTAINERD}; chattr +i /etc/containerd",
        step="configure-containerd",
        sentence="Step 'configure-containerd' failed.",
    ),
    "84 driver does not answer": Ending(
        code=84,
        config=BRIEF,
        # The output of nvidia-smi need not be UTF-8.
        files=[smi_settings("printf '\\377'; echo 'Failed to initialize NVML'; exit 18")],
        step="validate-query",
        sentence="Failed to initialize NVML",
    ),
    "84 GPU leaves between two steps": Ending(
        code=84,
        config=BRIEF,
        files=[
            smi_settings("for gpu in /sys/bus/pci/drivers/nvidia/0*; do echo 1 >$gpu/remove; done")
        ],
        step="validate-query",
        sentence="No devices were found",
    ),
    # This node has no short retry budget: a run that retried would take a quarter of an hour.
    "84 GPU is lost": Ending(
        code=84,
        files=[smi_settings("echo 'Unable to determine the device handle'; exit 15")],
        step="validate-query",
        sentence="A GPU has fallen off the bus; the machine needs a reboot or repair.",
    ),
    "84 unit of the driver does not start": Ending(
        code=84,
        config=BRIEF,
        files=[drop_in("nvidia-modprobe.service", "ExecStartPre=false")],
        step="start-modprobe-unit",
        sentence="Step 'start-modprobe-unit' failed.",
    ),
    "87 infoROM is only warned of": Ending(
        code=87,
        step="validate-query",
        files=[smi_settings("echo 'WARNING: infoROM is corrupted at gpu 0000:02:00.0'; exit 0")],
        sentence="The GPU's infoROM is corrupted; the machine needs repair.",
    ),
    "87 infoROM": Ending(
        code=87,
        gpu=GpuScript(is_inforom_corrupted=True),
        step="validate-query",
        sentence="The GPU's infoROM is corrupted; the machine needs repair.",
    ),
    "143 terminated": Ending(
        code=143,
        config=MANAGED,
        files=[
            drop_in(
                PLUGIN,
                # The pattern does not match the shell whose command line contains the pattern.
                "ExecStartPre=sh -c 'pkill -TERM -f \"^python3 .*[ ]boot \"'\n"
                "ExecStartPre=sleep infinity",
            )
        ],
        sentence="The run was terminated by a signal.",
    ),
    "224 no metadata": Ending(
        code=224,
        before=f"rm {METADATA_CACHE}",
        sentence="The machine's tags cannot be looked up. The instance metadata cache "
        f"'{METADATA_CACHE}' is missing.",
    ),
    "224 metadata is cut": Ending(
        code=224, before=metadata('{"compute": {"tags'), sentence=f"'{METADATA_CACHE}' is not JSON"
    ),
    "224 metadata without tags": Ending(
        code=224,
        before=metadata('{"compute": {}}'),
        sentence=f"'{METADATA_CACHE}' has no list '.compute.tagsList'.",
    ),
    "224 tag without a string": Ending(
        code=224,
        before=metadata(
            '{"compute": {"tagsList": [{"name": "SkipGpuDriverInstall", "value": true}]}}'
        ),
        sentence="The tag 'SkipGpuDriverInstall'",
    ),
    "230 tag without a string": Ending(
        code=230,
        before=metadata(
            '{"compute": {"tagsList": [{"name": "EnableManagedGPUExperience", "value": 1}]}}'
        ),
        sentence="The tag 'EnableManagedGPUExperience'",
    ),
    "229 drop-in cannot be written": Ending(
        code=229,
        config=MANAGED,
        before=f"touch /etc/systemd/system/{EXPORTER}.d",
        step="configure-managed-services",
        sentence="Step 'configure-managed-services' failed.",
    ),
}


@promise(section="13", unit=UNIT, each_change=("2 wrong value",))
@pytest.mark.parametrize(
    "ending", [pytest.param(ending, id=name) for name, ending in ENDINGS.items()]
)
def test_each_cause_of_a_failed_run_has_its_exit_code_and_its_error_message(
    start_validated: StartNode, ending: Ending
) -> None:
    """The process and the outcome have the same exit code, and kubelet is not started."""
    before: list[Argv] = [shell(ending.before)] if ending.before else []
    node = start_validated(
        "ending",
        command=ending.command,
        config=ending.config,
        before=before,
        files=ending.files,
        gpu_scripts={"gpu0": ending.gpu},
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence, exit_code=ending.code)
    outcome = evidence.outcome
    assert outcome is not None
    assert ending.sentence in (outcome.error or ""), (
        f"'{ending.sentence}' was expected in the outcome's error, which is: {outcome.error}"
    )
    failed = [step.name for step in outcome.steps if step.status == "failed"]
    assert failed == ([] if ending.step is None else [ending.step])
    for unit in (DCGM, KUBELET):
        assert evidence.shown_unit(unit).started_us is None, f"'{unit}' was started."
    if ending.keeps_driver:
        expect.driver_installed(evidence)


@pytest.mark.slow
@promise(section="13", unit=UNIT)
@pytest.mark.parametrize(
    ("config", "code", "step"),
    [
        pytest.param({"retry_budget_s": 150}, 85, "start-containerd", id="installed"),
        pytest.param(
            {**BRIEF, "config_gpu_driver_if_needed": False},
            4,
            "restart-containerd",
            id="validated",
        ),
    ],
)
def test_containerd_that_does_not_restart_has_its_own_exit_code(
    start_node: StartNode, config: Mapping[str, object], code: int, step: str
) -> None:
    """The exit code is 85 after an install and 4 before a validation, and never the driver's code."""
    broken = drop_in("containerd.service", "ExecStartPre=false")
    node = start_node("containerd", config=config, files=[broken])

    evidence = evidence_of(node)

    expect.provisioned(evidence, exit_code=code)
    expect.run_ended_at(evidence, step)
    expect.driver_installed(evidence)
    assert evidence.shown_unit(KUBELET).started_us is None


@promise(section="13", unit=UNIT)
def test_outcome_that_cannot_be_written_does_not_change_the_exit_code(
    start_validated: StartNode,
) -> None:
    """On a read-only disk, the exit code is the only result and still identifies the cause."""
    folder = OUTCOME_PATH.rpartition("/")[0]
    node = start_validated(
        "read-only",
        config={"gpu_node": "perhaps"},
        before=[shell(f"mkdir -p {folder}; chattr +i {folder}")],
    )

    evidence = evidence_of(node)

    assert evidence.outcome is None
    assert evidence.exit_code == 2
    expect.log_line(evidence, f"The outcome '{OUTCOME_PATH}' cannot be written")
