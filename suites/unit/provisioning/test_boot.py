"""A node's boot, from its command line to what it leaves."""

from __future__ import annotations

from harness.provisioning.command import CommandResult
from harness.provisioning.nvidia import DRIVER_PROGRAMS
from harness.provisioning.services import MARKER_PATH

from .fakes import (
    GPU_NODE,
    KERNEL,
    OTHER_KERNEL,
    OTHER_VERSION,
    RECORD_PATH,
    VERSION,
    Invocation,
    write_tags,
)
from .simulation import SimulatedNode, module_path

RUN_IMAGE = "ctr -n k8s.io run"


def actions_run(simulated: SimulatedNode) -> list[str]:
    """Return the driver image's actions that ran, in order."""
    return [call[-1] for call in simulated.calls if call[:4] == ("ctr", "-n", "k8s.io", "run")]


def failure(stdout: str = "", exit_code: int = 1) -> CommandResult:
    return CommandResult(argv=(), exit_code=exit_code, stdout=stdout, stderr="no")


def test_prebaked_kernel_takes_fast_path(simulated: SimulatedNode, invocation: Invocation) -> None:
    simulated.build(VERSION, KERNEL)

    assert invocation.run("boot", GPU_NODE) == 0

    assert actions_run(simulated) == ["install-skip-build"]
    assert simulated.loaded() == ("nvidia",)
    assert invocation.outcome()["decision"] == {"action": "install-skip-build", "reason": "ok"}
    assert invocation.steps()["install-driver"] == "skipped"


def test_mismatched_kernel_rebuilds_module(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.kernel = OTHER_KERNEL

    assert invocation.run("boot", GPU_NODE) == 0

    assert actions_run(simulated) == ["install"]
    assert OTHER_KERNEL in (simulated.root.read(module_path(OTHER_KERNEL)) or "")
    assert "AKS_GPU_PREBAKE event=decision action=install reason=kernel" in invocation.log()


def test_node_without_gpu_is_stripped(simulated: SimulatedNode, invocation: Invocation) -> None:
    simulated.build(VERSION, KERNEL)

    assert invocation.run("boot", {}) == 0

    left = [path for path in (*DRIVER_PROGRAMS, RECORD_PATH) if simulated.root.exists(path)]
    assert left == []
    decision, teardown = invocation.prebake_lines()
    assert decision == "AKS_GPU_PREBAKE event=decision action=teardown reason=opted_out"
    assert teardown == (
        "AKS_GPU_PREBAKE event=teardown gpu_node=false status=cleaned dkms_before=true"
        " module_before=false module_after=false marker_after=false dkms_after=false"
        " modprobe_after=false"
    )


def test_opted_out_gpu_node_is_stripped_after_kubelet_started(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    write_tags(simulated.root, ("SkipGpuDriverInstall", "true"))

    assert invocation.run("boot", GPU_NODE) == 0

    assert not simulated.root.exists(RECORD_PATH)
    assert list(invocation.steps()) == ["start-kubelet", "clean-up-driver"]


def test_failing_device_plugin_ends_with_its_own_code(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.units |= {"nvidia-device-plugin", "nvidia-dcgm", "nvidia-dcgm-exporter"}
    simulated.failing["systemctl restart nvidia-device-plugin"] = failure()

    assert invocation.run("boot", {**GPU_NODE, "enable_managed_gpu": True}) == 86

    assert invocation.outcome()["exit_name"] == "GPU_DEVICE_PLUGIN_START_FAIL"
    assert "kubelet" not in simulated.active


def test_dcgm_that_cannot_be_enqueued_is_a_warning(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.units |= {"nvidia-device-plugin", "nvidia-dcgm", "nvidia-dcgm-exporter"}
    simulated.failing["systemctl restart --no-block nvidia-dcgm"] = failure()

    assert invocation.run("boot", {**GPU_NODE, "enable_managed_gpu": True}) == 0

    assert (
        "warning: nvidia-dcgm could not be enqueued; GPU monitoring will start asynchronously"
        in invocation.log()
    )
    assert simulated.root.exists(MARKER_PATH)


def test_another_version_is_torn_down_before_the_install(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(OTHER_VERSION, KERNEL)

    assert invocation.run("boot", GPU_NODE) == 0

    assert invocation.outcome()["decision"] == {"action": "teardown-install", "reason": "version"}
    assert actions_run(simulated) == ["install"]
    assert simulated.root.names("/var/lib/dkms/nvidia") == (VERSION,)
