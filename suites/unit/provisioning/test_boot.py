"""The boot of a node, from the command line to its results."""

from __future__ import annotations

import pytest

from harness.provisioning.command import CommandResult
from harness.provisioning.containerd_config import CONTAINERD_CONFIG
from harness.provisioning.services import MARKER_PATH
from harness.provisioning.toolkit import CRI_O_DROP_IN

from .fakes import (
    GPU_NODE,
    IMAGE,
    KERNEL,
    OTHER_KERNEL,
    OTHER_VERSION,
    RECORD_PATH,
    VERSION,
    Invocation,
    write_record,
    write_tags,
)
from .simulation import PROGRAMS, SimulatedNode, module_path


def actions_run(simulated: SimulatedNode) -> list[str]:
    """Return the driver image's actions that ran, in order."""
    return [call[-1] for call in simulated.calls if call[:4] == ("ctr", "-n", "k8s.io", "run")]


def failure(stdout: str = "", exit_code: int = 1) -> CommandResult:
    return CommandResult(argv=(), exit_code=exit_code, stdout=stdout, stderr="no")


def test_boot_with_the_prebaked_kernel_installs_the_driver_without_a_build(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """A killed run left the container."""
    simulated.build(VERSION, KERNEL)
    simulated.containers.add("gpuinstall")

    assert invocation.run("boot", GPU_NODE) == 0

    questions = simulated.calls[: simulated.calls.index(("dkms", "status"))]
    assert ("ldconfig",) in questions, "the linker's cache is renewed before it is believed"
    assert actions_run(simulated) == ["install-skip-build"]
    assert simulated.loaded() == ("nvidia",)
    assert invocation.outcome()["decision"] == {"action": "install-skip-build", "reason": "ok"}
    assert invocation.steps()["install-driver"] == "skipped"


def test_module_is_built_again_for_another_kernel(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.kernel = OTHER_KERNEL

    assert invocation.run("boot", GPU_NODE) == 0

    assert actions_run(simulated) == ["install"]
    assert OTHER_KERNEL in (simulated.files.read(module_path(OTHER_KERNEL)) or "")
    assert "AKS_GPU_PREBAKE event=decision action=install reason=kernel" in invocation.log()


def test_boot_of_a_node_without_gpu_removes_the_driver(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)

    assert invocation.run("boot", {}) == 0

    left = [path for path in (*PROGRAMS, RECORD_PATH) if simulated.files.exists(path)]
    assert left == []
    decision, teardown = invocation.prebake_lines()
    assert decision == "AKS_GPU_PREBAKE event=decision action=teardown reason=opted_out"
    assert teardown == (
        "AKS_GPU_PREBAKE event=teardown gpu_node=false status=cleaned dkms_before=true"
        " module_before=false module_after=false marker_after=false dkms_after=false"
        " modprobe_after=false"
    )


def test_driver_is_removed_from_an_opted_out_node_with_a_gpu_after_kubelet_started(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.files.write("/opt/dcgm-exporter/x.deb", "")
    write_tags(simulated.files, ("SkipGpuDriverInstall", "true"))

    assert invocation.run("boot", GPU_NODE) == 0

    assert not simulated.files.exists(RECORD_PATH)
    assert not simulated.files.exists("/opt/dcgm-exporter")
    assert list(invocation.steps()) == ["start-kubelet", "clean-up-driver"]


def test_boot_fails_if_the_device_plugin_or_the_dra_driver_does_not_start(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.units |= {"nvidia-device-plugin", "dra-driver-nvidia-gpu", *MONITORING}
    for unit in ("nvidia-device-plugin", "dra-driver-nvidia-gpu"):
        simulated.failing[f"systemctl restart {unit}"] = failure()

    asked = {**GPU_NODE, "retry_budget_s": 60}
    assert invocation.run("boot", {**asked, "enable_managed_gpu": True}) == 86
    assert "kubelet" not in simulated.active
    simulated.images = {IMAGE}
    assert invocation.run("boot", {**asked, "enable_managed_gpu_dra": True}) == 129


MONITORING = {"nvidia-dcgm": "GPU monitoring", "nvidia-dcgm-exporter": "GPU metrics"}


def test_failure_to_enqueue_a_monitoring_unit_is_only_a_warning(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.units |= {"nvidia-device-plugin", *MONITORING}
    for unit in MONITORING:
        simulated.failing[f"systemctl restart --no-block {unit}"] = failure()

    assert invocation.run("boot", {**GPU_NODE, "enable_managed_gpu": True}) == 0

    for unit, what in MONITORING.items():
        warning = f"warning: {unit} could not be enqueued; {what} will start asynchronously"
        assert warning in invocation.log()
    assert simulated.files.exists(MARKER_PATH)


# -- what ends a boot, and with which number ----------------------------------------------------


@pytest.mark.parametrize(
    ("command", "exit_code", "step"),
    [
        ("ctr version", 84, "wait-for-containerd"),
        ("ctr -n k8s.io image pull", 84, "pull-driver-image"),
        ("ctr -n k8s.io run", 84, "install-driver"),
        ("nvidia-modprobe", 84, "probe-device"),
        ("nvidia-smi", 84, "query-device"),
        ("systemctl restart containerd", 85, "start-containerd"),
        ("systemctl enable containerd", 85, "start-containerd"),
        ("systemctl restart nvidia-modprobe", 84, "start-modprobe-unit"),
        ("systemctl restart nvidia-fabricmanager", 84, "start-fabric-manager"),
        ("systemctl restart kubelet", 4, "start-kubelet"),
    ],
)
def test_failing_command_ends_the_boot_with_the_exit_code_of_its_step(
    simulated: SimulatedNode, invocation: Invocation, command: str, exit_code: int, step: str
) -> None:
    simulated.images.clear()
    simulated.registry = {IMAGE}
    simulated.units.add("nvidia-fabricmanager")
    simulated.failing[command] = failure()

    asked = {**GPU_NODE, "gpu_needs_fabric_manager": True, "retry_budget_s": 60}
    assert invocation.run("boot", asked) == exit_code

    assert invocation.steps()[step] == "failed"
    assert "kubelet" not in simulated.active


def test_commands_that_may_fail_do_not_end_the_boot(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    commands = (
        "systemctl daemon-reload",
        "ctr -n k8s.io images rm",
        "systemctl restart node-problem-detector",
        "systemctl stop nvidia-fabricmanager",
        "systemctl reset-failed nvidia-fabricmanager",
        "systemctl stop nvidia-dcgm",
        "systemctl restart mig-partition",
        "systemctl enable mig-partition",
    )
    simulated.units |= {"nvidia-fabricmanager", "nvidia-dcgm", "mig-partition"}
    simulated.failing.update(dict.fromkeys(commands, failure()))

    asked = {**GPU_NODE, "gpu_instance_profile": "MIG1g", "retry_budget_s": 3000}
    assert invocation.run("boot", asked) == 0

    assert "kubelet" in simulated.active
    assert simulated.calls[-1] == ("shutdown", "-r", "1")
    calls = [" ".join(call) for call in simulated.calls]
    assert [each for each in commands if not any(call.startswith(each) for call in calls)] == []


def test_disabled_managed_services_are_stopped_if_they_exist(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.units |= {"nvidia-dcgm", "nvidia-device-plugin"}
    simulated.active |= {"nvidia-dcgm", "nvidia-device-plugin"}
    simulated.enabled |= {"nvidia-dcgm", "nvidia-device-plugin"}
    simulated.files.write(MARKER_PATH, "")

    assert invocation.run("boot", GPU_NODE) == 0

    assert simulated.active.isdisjoint({"nvidia-dcgm", "nvidia-device-plugin"})
    assert simulated.enabled.isdisjoint({"nvidia-dcgm", "nvidia-device-plugin"})
    assert not simulated.files.exists(MARKER_PATH)
    assert invocation.steps()["stop-nvidia-dcgm"] == "done"
    assert invocation.steps()["stop-nvidia-dcgm-exporter"] == "skipped"


def test_dra_driver_starts_after_a_healthy_kubelet(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.units |= {"dra-driver-nvidia-gpu", "nvidia-dcgm", "nvidia-dcgm-exporter"}

    assert invocation.run("boot", {**GPU_NODE, "enable_managed_gpu_dra": True}) == 0

    lines = [" ".join(call) for call in simulated.calls]
    order = [
        "systemctl restart kubelet",
        "systemctl is-active --quiet kubelet",
        "systemctl restart dra-driver-nvidia-gpu",
    ]
    assert sorted(order, key=lines.index) == order


def test_corrupted_inforom_ends_validation_at_once(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.failing["nvidia-smi"] = failure("WARNING: infoROM is corrupted at gpu 0000\n", 14)

    code = invocation.run("boot", {**GPU_NODE, "config_gpu_driver_if_needed": False})

    assert code == 87
    assert invocation.outcome()["exit_name"] == "GPU_INFO_ROM_CORRUPTED"
    assert invocation.clock.sleeps == []


def test_validation_of_a_working_driver_installs_nothing(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)

    assert invocation.run("boot", {**GPU_NODE, "config_gpu_driver_if_needed": False}) == 0

    assert actions_run(simulated) == []
    assert invocation.steps()["pull-driver-image"] == "skipped"


def test_boot_in_validation_mode_installs_a_driver_if_there_is_none(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    assert invocation.run("boot", {**GPU_NODE, "config_gpu_driver_if_needed": False}) == 0

    assert actions_run(simulated) == ["install"]
    assert invocation.steps()["validate-probe"] == "failed"
    assert invocation.steps()["validate-query"] == "done"


def test_node_that_partitions_its_gpu_reboots_at_the_end_of_the_boot(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """An arm64 node, whose image contains the driver, partitions its GPU like other nodes."""
    simulated.arch = "aarch64"
    simulated.units.add("mig-partition")

    assert invocation.run("boot", {**GPU_NODE, "gpu_instance_profile": "MIG1g"}) == 0

    assert simulated.calls[-1] == ("shutdown", "-r", "1")
    assert simulated.files.exists("/etc/systemd/system/mig-partition.service")


def test_container_of_an_install_that_hangs_is_removed(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.failing["ctr -n k8s.io run"] = failure(exit_code=124)

    assert invocation.run("boot", GPU_NODE) == 84

    assert ("ctr", "-n", "k8s.io", "container", "rm", "gpuinstall") in simulated.calls
    assert actions_run(simulated) == ["install-skip-build", *["install"] * 5]


def test_cri_o_gets_the_nvidia_runtime_unless_the_node_opted_out(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    asked = {**GPU_NODE, "container_runtime": "cri-o"}

    assert invocation.run("boot", asked) == 0
    assert not simulated.files.exists(CONTAINERD_CONFIG)
    assert simulated.files.exists(CRI_O_DROP_IN)
    assert "configure-cri-o" in invocation.steps()

    write_tags(simulated.files, ("SkipGpuDriverInstall", "true"))
    assert invocation.run("boot", asked) == 0
    assert not simulated.files.exists(CRI_O_DROP_IN)


@pytest.mark.parametrize(
    ("wanted", "baked", "version", "is_told"),
    [
        ("grid-v20", "cuda", VERSION, True),
        ("grid", "grid", OTHER_VERSION, False),
        ("cuda-lts", "grid", VERSION, False),
    ],
)
def test_grid_teardown_is_logged_only_on_a_grid_node_with_a_baked_driver_of_another_kind(
    simulated: SimulatedNode,
    invocation: Invocation,
    wanted: str,
    baked: str,
    version: str,
    *,
    is_told: bool,
) -> None:
    simulated.images = {IMAGE.replace("cuda-lts", wanted)}
    write_record(simulated.files, kind=baked, version=version)

    assert invocation.run("boot", {**GPU_NODE, "gpu_driver_type": wanted}) == 0

    assert invocation.steps()["tear-down-driver"] == "done"
    event = "AKS.CSE.ensureGPUDrivers.cleanUpGridNodeCudaPrebake"
    line = f"driver_type={wanted} marker_kind={baked} node_kind=grid action=teardown"
    assert (event in invocation.events()) is is_told
    assert any(line in said for said in invocation.prebake_lines()) is is_told


def test_nvidia_runtime_is_removed_from_an_opted_out_node(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    assert invocation.run("boot", GPU_NODE) == 0
    assert "nvidia-container-runtime" in (simulated.files.read(CONTAINERD_CONFIG) or "")
    write_tags(simulated.files, ("SkipGpuDriverInstall", "true"))

    assert invocation.run("boot", GPU_NODE) == 0

    assert "nvidia" not in (simulated.files.read(CONTAINERD_CONFIG) or "")
    assert invocation.steps()["restart-containerd"] == "done"
